//! Deliberate faults that the loom models must catch.

memgroup_sync::mutations! {
    /// A charging thread applies the limit that it read to a usage that it finds later.
    LimitIgnoresEpoch,
    /// A refusal is decided by a usage that may be older than the call.
    RefusalIgnoresNewerUsage,
    /// A drain takes a stock with a blind swap, erasing the marks in the word.
    DrainSwapsBlindly,
    /// A drain takes the attempts too, and counts them when it has returned the bytes.
    DrainTakesAttempts,
    /// A refusing thread decides without waiting for batches in flight.
    RefusalIgnoresPending,
    /// A refusing thread empties only the stocks that hold something.
    RefusalSkipsEmptyStocks,
    /// A batch is charged before the levels know of the grant for the stock that will hold it.
    GrantIsKnownTooLate,
    /// A drain returns the grant of a stock before it has uncharged the bytes.
    GrantIsReturnedTooEarly,
    /// Bytes that come back to a level leave the slots open that hold bytes back beside a charge
    /// that waits there.
    FallLeavesSlotsOpen,
    /// An uncharge finds that no waiting charge fits, although one does.
    FallFindsNoWaiter,
    /// A slot is opened beside a charge that waits, and its thread reads the counters without a
    /// fence.
    HoldsBesideWithoutFence,
    /// A removal takes bytes that an allocator holds back, and serves no charge that waits above.
    RetireServesNoWaiter,
    /// A thread that takes a group off the list of holders does not check whether the group was
    /// granted something in the meantime.
    UnlistDoesNotLookAgain,
    /// A drain takes bytes above the cap, which an uncharge under way has put there.
    DrainTakesAboveTheCap,
    /// An uncharge that returns a batch takes the bytes of other uncharges along.
    OverflowTakesAll,
    /// A drain takes the slots of a group without a fence before it reads the stocks.
    SlotsAreTakenWithoutFence,
    /// A batch is put into the stock before the counters are charged.
    DepositBeforeCharge,
    /// An attempt that is undone on a stock that is not open leaves the bytes there that it had
    /// hidden.
    UndoneAttemptIgnoresClosed,
    /// An uncharge reads a level's parent after it has taken the level's bytes, which alone kept
    /// the node from reuse.
    LevelAboveIsReadLate,
    /// A group above its limit keeps its stocks open.
    OverLimitLeavesStocksOpen,
    /// A grant passes a level that is marked.
    GrantPassesMarks,
    /// A thread that clears the mark of a group above its limit does not read the usage again.
    MarkGoesWithoutALook,
    /// Removal leaves the stocks of the group open.
    RemovalLeavesStocksOpen,
    /// A removal retires stocks without waiting for threads between them and the counters.
    RetireIgnoresPending,
    /// An uncharge that changed a stock word relies on it later without checking its node again.
    LateUnchargeTrustsItsWord,
    /// The budget's clock takes a cap that it read by a store.
    ClockTakesTheCapBlindly,
    /// A charge of a group that nothing holds attempts its stock outside of a section.
    UnheldChargeHasNoSection,
    /// Statistics are copied out of the record that is left behind, and not buried there.
    FoldLeavesCountsLive,
    /// Counts that move to a new record are not marked there.
    MoverDoesNotMark,
    /// An update relies on another thread's mark without checking it.
    UpdateNeverMarks,
    /// A hit that is not listed is not marked.
    HitNeverMarks,
    /// A flush takes the attempts of a stock and leaves it listed.
    HarvestLeavesListed,
    /// A reader takes the result of a flush that began before the reader arrived.
    ReaderTakesAFlushThatHadBegun,
    /// A reader takes the result of a flush of other groups.
    ReaderTakesAFlushOfOthers,
    /// A flush takes changes no further than to the parent.
    FlushStopsBelowTheRoot,
    /// A flush counts as over after its first piece.
    PieceEndsTheFlush,
    /// A flush counts as begun with its last piece.
    PieceBeginsTheFlush,
    /// A copy of many groups' values begins with the groups above, and not with those below.
    CopyBeginsAtTheTop,
    /// A flush takes the words of a group from the first to the last.
    FlushTakesFirstWordsFirst,
    /// A flush takes the miss counts after it counted the charges.
    FlushTakesMissesLast,
    /// A flush that does not find a copy of a record does not search for the copy elsewhere.
    FlushTakesUnfoundForNone,
    /// A release settles statistics while they are flushed.
    ReleaseIgnoresFlush,
    /// A release takes marks that a flush under way has cleared for marks of nothing.
    ReleaseLooksAtMarksAlone,
    /// A thread that has finished a flush does not check for releases that were left to it.
    FlushLeavesReleases,
    /// Values are written without the sequence that tells readers.
    CopyIsNotOfOneMoment,
    /// A marking thread reads the marks above before its own mark is visible.
    MarkWithoutFence,
    /// A marking thread leaves the marks above to the thread that marked there before.
    MarkReliesOnOthers,
    /// A thread that clears the last mark does not check whether another was set.
    UnmarkDoesNotLookAgain,
    /// A thread that clears a group's mark does not check whether a mark was set in the group in
    /// the meantime.
    TidyDoesNotLookAgain,
    /// A thread that clears a group's mark checks that group again, although its number is another
    /// group's by now.
    TidyLooksAtTheOldGroup,
    /// A cache that said it was empty is not asked again after its mark was cleared.
    UnmarkIgnoresLateItems,
    /// A thread that frees a shrinker slot checks only afterwards whether the slot was given up.
    LetGoLooksAfterwards,
    /// A thread that frees a shrinker slot does not check for waiting threads.
    LetGoIgnoresWaiters,
    /// A thread that hands a shrinker slot on does not note that more threads wait.
    HandOnForgetsTheRest,
    /// A thread whose patience has ended leaves without checking whether the shrinker slot was
    /// handed to it.
    WaiterLeavesWithTheSlot,
    /// A shrinker slot that is given up passes deferred work on although a call is running that may
    /// defer more.
    LeaverHandsOnFirst,
    /// Deferred work is read and left where it is.
    DeferredIsOnlyRead,
    /// A thread clears a mark in a size class that is not the slot's, and does not check whether it
    /// is by now.
    LeftOverIsTakenBlindly,
    /// A call that lasts too long is noted on whichever call is running by then.
    NoteIsOfAnyCall,
    /// A search of the marks that found none counts although marks moved during the search.
    LookIgnoresMoves,
    /// Bytes that a charge set free leave the full group, and are charged there again.
    KeptLeavesTheFullGroup,
    /// Kept bytes that became the charge are still kept.
    UsedIsStillKept,
    /// Kept bytes that no charge used stay charged.
    KeptIsNotLetGo,
    /// A debt is taken by a load and a store.
    DebtIsTakenBlindly,
    /// A debt is noted by a load and a store.
    DebtIsNotedBlindly,
    /// A thread that records used protection does not check whether usage changed in the meantime.
    RecorderDoesNotLookAgain,
    /// A thread records used protection in a group that goes offline, and the removal does not
    /// wait.
    RecorderIgnoresOffline,
    /// A charge that a higher level refused records no protected bytes when it is taken back.
    TakenBackUnrecorded,
    /// No fence stands between the count of an event and the check for waiting threads.
    EventLooksWithoutFence,
    /// A thread that waits for events reads the counts before it announces itself.
    WaiterLooksBeforeItIsArmed,
    /// A reclaimer checks for tasks that it must wake before it can be notified of them.
    ReclaimerSleepsWithoutALook,
    /// A reader of the peak that is reset loads the usage.
    ResetLoadsUsage,
    /// Charges pass a dry-run limit while stocks below it are open.
    DryRunLeavesStocksOpen,
    /// A waiting charge checks for room before it is in the queue, and not afterwards.
    WaiterDoesNotLookAgain,
    /// Uncharging threads learn how many bytes a charge waits for only after its check for room.
    WaiterIsToldLate,
    /// A charge at its deadline leaves without checking whether it was made in the meantime.
    WaiterGoesWithoutTheCharge,
    /// A thread that serves waiting charges calls the wakers of tasks under the lock of the queues.
    WakersAreCalledUnderTheLock,
    /// A future that is dropped forgets the charge that was handed to it.
    DroppedFutureKeepsTheCharge,
    /// A future at its deadline leaves without checking whether its charge was made in the
    /// meantime.
    FutureGoesWithoutTheCharge,
    /// A reclaimer ends the wait of a task at its deadline, though a charge was handed to it.
    LateTaskLosesItsCharge,
    /// A reclaimer forgets the charge that it made for a wait that is over.
    ReviewIgnoresTheEnd,
    /// The end of a review checks for room by a load.
    ReviewEndsWithALoad,
    /// A reclaimer makes room for a queue and leaves its group unmarked.
    ReclaimerDoesNotMark,
    /// The last reclaimer ends, and does not notify the tasks that wait.
    LastReclaimerLeavesTasks,
    /// A future leaves the waker of its first poll in the queue.
    FutureKeepsItsFirstWaker,
    /// A charge that a higher level refuses leaves the levels below without checking for waiting
    /// charges.
    TakenBackWithoutALook,
    /// A reset of a peak reader begins with bytes of charges under way, above the peak.
    ResetGoesAboveThePeak,
    /// A thread that searches for a thread at work does not fence before it checks the result.
    LookWithoutFence,
    /// A thread changes its scope without a fence before it checks for groups that rely on it.
    MoveWithoutFence,
    /// A thread found at work is not checked again after it was published.
    WitnessIsTakenAtItsWord,
    /// A thread that took the last bytes of a group pins its node only when it has left its
    /// section.
    AftermathPinsTooLate,
    /// Nodes are erased although a thread holds one for the aftermath.
    ErasesHeldNodes,
    /// A mover keeps the turn of one subsystem while it waits for that of the next.
    MoverKeepsItsTurn,
    /// An owner that leaves closes its group, although the group has another owner.
    OwnerIgnoresOthers,
    /// A weak handle becomes a handle on the group that has the place now.
    UpgradeIgnoresGeneration,
}
