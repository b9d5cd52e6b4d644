//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A charger applies the limit it read to whatever usage it finds later.
    LimitIgnoresEpoch,
    /// A drain takes a stock with a blind swap, erasing the marks in the word.
    DrainSwapsBlindly,
    /// A drain takes the attempts too, and counts them when it has returned the bytes.
    DrainTakesAttempts,
    /// A refuser decides without waiting for batches in flight.
    RefusalIgnoresPending,
    /// A refuser closes only the stocks that hold something.
    RefusalSkipsEmptyStocks,
    /// A batch is put into the stock before the counters are charged.
    DepositBeforeCharge,
    /// An attempt that is undone on a closed stock leaves there what it had hidden.
    UndoneAttemptIgnoresClosed,
    /// A group above its limit keeps its stocks open.
    OverrunLeavesStocksOpen,
    /// Removal leaves the stocks of the group open.
    RemovalLeavesStocksOpen,
    /// A record moves while its stocks are open.
    MoveLeavesStocksOpen,
    /// A record moves without waiting for batches in flight.
    MoveIgnoresPending,
    /// The stocks of a group that may have none are open in its new record.
    MoveOpensStocks,
    /// The stocks of groups that may have none are open in a slot that is admitted.
    AdmissionOpensStocks,
    /// Statistics are copied out of the record that is left behind, and not buried there.
    FoldLeavesCountsLive,
    /// What a mover brings to a new record is not marked.
    MoverDoesNotMark,
    /// An update relies on somebody else's mark without looking.
    UpdateNeverMarks,
    /// A hit that is not listed is not marked.
    HitNeverMarks,
    /// A flush takes the attempts of a stock and leaves it listed.
    HarvestLeavesListed,
    /// A reader is content with a flush that had begun before it came.
    ReaderTakesAFlushThatHadBegun,
    /// A reader is content with a flush of whatever groups.
    ReaderTakesAFlushOfOthers,
    /// A flush does not take changes further than to the parent.
    FlushStopsBelowTheRoot,
    /// A flush takes the words of a group from the first to the last.
    FlushTakesFirstWordsFirst,
    /// A flush that does not find a copy of a record looks no further.
    FlushTakesUnfoundForNone,
    /// A release settles statistics while they are flushed.
    ReleaseIgnoresFlush,
    /// Who held the layout of the statistics does not look for releases that were left to it.
    FlushLeavesReleases,
    /// Values are written without the sequence that tells readers.
    CopyIsNotOfOneMoment,
    /// Attempts found in a record that was left behind are counted for whoever has the place now.
    LastLookIgnoresGeneration,
    /// Who marks looks at the marks above before its own can be seen.
    MarkWithoutFence,
    /// Who marks leaves the marks above to whoever marked there before.
    MarkReliesOnOthers,
    /// Who takes the last mark does not look whether another has come.
    UnmarkDoesNotLookAgain,
    /// Who takes the mark of a group does not look whether something was marked in it meanwhile.
    TidyDoesNotLookAgain,
    /// Who takes the mark of a group looks again in that one, also where its number is another's by now.
    TidyLooksAtTheOldGroup,
    /// A cache that said it was empty is not asked again when its mark is gone.
    UnmarkIgnoresLateItems,
    /// Who lets a seat go looks only afterwards whether it was given up.
    LetGoLooksAfterwards,
    /// Who lets a seat go does not look whether somebody waits for it.
    LetGoIgnoresWaiters,
    /// Who hands a seat on does not say that more wait for it.
    HandOnForgetsTheRest,
    /// Who has waited for long enough goes without a look whether the seat was handed to it meanwhile.
    WaiterGoesWithTheSeat,
    /// Who gives a seat up hands on what is deferred there while a call lasts that may defer more.
    LeaverHandsOnFirst,
    /// What is deferred is read by who asks for it, and left where it is.
    DeferredIsOnlyRead,
    /// Who takes a mark in a class that is not the seat's does not look whether it is by now.
    LeftOverIsTakenBlindly,
    /// Who notes that a call lasts too long notes it for whatever call lasts by then.
    NoteIsOfAnyCall,
    /// What a charge has set free leaves the group that is full, and is charged there again.
    KeptLeavesTheFullGroup,
    /// What was kept and has become the charge is kept still.
    UsedIsStillKept,
    /// What was kept and not used stays charged.
    KeptIsNotLetGo,
    /// A debt is taken by a look and a store.
    DebtIsTakenBlindly,
    /// A debt is noted by a look and a store.
    DebtIsNotedBlindly,
    /// Who records what a group uses of its protection does not look whether that has changed meanwhile.
    RecorderDoesNotLookAgain,
    /// Who records does so in a group that goes offline, and nobody waits for that.
    RecorderIgnoresOffline,
    /// An event is counted, and who waits is looked for, without a fence in between.
    EventLooksWithoutFence,
    /// Who waits for events looks at the counts, and announces itself afterwards.
    WaiterLooksBeforeItIsArmed,
    /// A callback that is due again when it returns wakes nobody.
    CallbackReturnsInSilence,
    /// A reader of the peak that is reset loads the usage.
    ResetLoadsUsage,
    /// Charges pass a limit that only measures while stocks below it are open.
    MeasureLeavesStocksOpen,
    /// A charge that waits looks for room before it is in the line, and not after.
    WaiterDoesNotLookAgain,
    /// A charge whose deadline has passed goes without a look whether it was made meanwhile.
    WaiterGoesWithoutTheCharge,
    /// A charge that a higher level refuses leaves the levels below without a look for who waits there.
    TakenBackWithoutALook,
    /// A reader of the peak that is reset begins with what charges under way have added, peak or not.
    ResetGoesAboveThePeak,
    /// Who looks for a thread at work does not fence between what it has found and its look whether that holds.
    LookWithoutFence,
    /// A thread changes its scope without a fence before it looks who relies on it.
    MoveWithoutFence,
    /// A thread that was found at work is not looked at again when others know of it.
    WitnessIsTakenAtItsWord,
}
