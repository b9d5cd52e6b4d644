//! Statics and thread-locals that read the same in a normal build and under loom.

/// Declares statics, private to their module, with constant initialisers.
///
/// In a normal build each *is* that static. Under `cfg(memgroup_loom)` it is made on first use in
/// each execution of a model, and dropped at its end, so that executions share nothing.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::atomic::{AtomicU64, Ordering};
///
/// memgroup_sync::global! {
///     /// How many tickets were drawn.
///     static TICKETS: AtomicU64 = AtomicU64::new(0);
/// }
/// assert_eq!(TICKETS.fetch_add(1, Ordering::Relaxed), 0);
/// # }
/// ```
#[cfg(not(memgroup_loom))]
#[macro_export]
macro_rules! global {
    ($($(#[$attr:meta])* static $name:ident: $ty:ty = $init:expr;)+) => {$(
        $(#[$attr])*
        static $name: $ty = $init;
    )+};
}

/// Declares statics with constant initialisers; under loom, one value an execution.
#[cfg(memgroup_loom)]
#[macro_export]
macro_rules! global {
    ($($(#[$attr:meta])* static $name:ident: $ty:ty = $init:expr;)+) => {
        $crate::loom::lazy_static! {$(
            $(#[$attr])*
            static ref $name: $ty = $init;
        )+}
    };
}

/// Declares thread-locals with constant initialisers, used through `NAME.with(|value| ..)`.
///
/// In a normal build the access is one load relative to the thread pointer, and it never allocates
/// if the type needs no drop. Under `cfg(memgroup_loom)` it belongs to the model's thread: a `std`
/// thread-local would be shared by all of them, because loom runs them on one.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use std::cell::Cell;
///
/// memgroup_sync::thread_local! {
///     static DEPTH: Cell<u32> = const { Cell::new(0) };
/// }
/// DEPTH.with(|depth| depth.set(depth.get() + 1));
/// assert_eq!(DEPTH.with(Cell::get), 1);
/// # }
/// ```
#[cfg(not(memgroup_loom))]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $ty:ty = const $init:block;)+) => {
        ::std::thread_local! {$(
            $(#[$attr])*
            $vis static $name: $ty = const $init;
        )+}
    };
}

/// Declares thread-locals with constant initialisers; under loom, of the model's thread.
#[cfg(memgroup_loom)]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $ty:ty = const $init:block;)+) => {
        $crate::loom::thread_local! {$(
            $(#[$attr])*
            $vis static $name: $ty = $init;
        )+}
    };
}

/// Declares deliberate faults that the loom models of a crate must catch: an enum `Mutation`,
/// `active(fault)` for the modelled code, and in tests `with(fault, model)`, which runs a model
/// with one fault on.
///
/// Each model of a protocol has a twin that runs it with a fault switched on and must fail.
/// Outside loom builds `active` is a constant `false` and the faults do not exist.
///
/// ```
/// mod mutation {
///     memgroup_sync::mutations! {
///         /// The last step is left out.
///         LastStepIsLeftOut,
///     }
/// }
/// assert!(!mutation::active(mutation::Mutation::LastStepIsLeftOut));
/// ```
#[macro_export]
macro_rules! mutations {
    ($($(#[$doc:meta])* $fault:ident,)+) => {
        /// One deliberate fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(memgroup_loom), allow(dead_code))]
        pub(crate) enum Mutation {
            $($(#[$doc])* $fault,)+
        }

        #[cfg(not(memgroup_loom))]
        #[inline(always)]
        pub(crate) const fn active(_: Mutation) -> bool {
            false
        }

        // All threads of one loom model run on the OS thread of its test, so this is one switch a
        // test.
        #[cfg(memgroup_loom)]
        std::thread_local! {
            static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
        }

        #[cfg(memgroup_loom)]
        pub(crate) fn active(mutation: Mutation) -> bool {
            ACTIVE.get() == Some(mutation)
        }

        /// Runs `model` with the fault on.
        #[cfg(memgroup_loom)]
        #[cfg_attr(not(test), allow(dead_code))]
        pub(crate) fn with(mutation: Mutation, model: impl FnOnce()) {
            ACTIVE.set(Some(mutation));
            model();
            ACTIVE.set(None);
        }
    };
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use core::cell::Cell;

    use crate::Mutex;

    global! {
        static SHARED: Mutex<u32> = Mutex::new(0);
    }

    thread_local! {
        static OWN: Cell<u32> = const { Cell::new(5) };
    }

    #[test]
    fn shares_a_global_and_not_a_thread_local() {
        OWN.with(|own| own.set(6));
        *SHARED.lock() += 1;
        std::thread::spawn(|| {
            assert_eq!(OWN.with(Cell::get), 5);
            *SHARED.lock() += 1;
        })
        .join()
        .unwrap();
        assert_eq!(OWN.with(Cell::get), 6);
        assert_eq!(*SHARED.lock(), 2);
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom_models {
    use core::cell::Cell;

    use crate::Mutex;

    global! {
        static SHARED: Mutex<u32> = Mutex::new(0);
    }

    thread_local! {
        static OWN: Cell<u32> = const { Cell::new(5) };
    }

    #[test]
    fn loom_a_global_is_one_for_all_threads_and_new_in_each_execution() {
        crate::model(|| {
            let other = crate::thread::spawn(|| {
                assert_eq!(OWN.with(|own| own.replace(1)), 5, "the other thread's own");
                *SHARED.lock() += 1;
            });
            assert_eq!(OWN.with(|own| own.replace(2)), 5, "this thread's own");
            *SHARED.lock() += 1;
            other.join().unwrap();
            assert_eq!(*SHARED.lock(), 2);
        });
    }
}
