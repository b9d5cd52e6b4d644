//! Catches the system calls of a piece of code, without privileges and without a second process.
//!
//! Linux can be told to turn every system call of one thread into the signal SIGSYS, as long as a
//! byte of that thread says so (syscall user dispatch). The byte is set just before the code and
//! cleared just after it. The signal handler notes the call, makes it fail with ENOSYS and clears
//! the byte. So the *first* call is seen, which is enough for a claim of "none".
//!
//! - I1. The byte is a thread-local that outlives the dispatch: dispatch is switched off before
//!   `first_call` returns.
//! - I2. The handler touches only this thread's locals and its own arguments.

#![allow(unsafe_code)]

/// Result of tracing a piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traced {
    /// The code made no system call.
    None,
    /// The number of the first system call it made.
    First(i64),
    /// This machine has no syscall user dispatch.
    NotHere,
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) use here::first_call;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(crate) fn first_call(code: impl FnOnce()) -> crate::error::Result<Traced> {
    code();
    Ok(Traced::NotHere)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod here {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI64, AtomicU8, Ordering, compiler_fence};

    use super::Traced;
    use crate::harness::prelude::*;

    const ALLOW: u8 = 0;
    const BLOCK: u8 = 1;
    const NO_CALL: i64 = -1;

    thread_local! {
        static SELECTOR: AtomicU8 = const { AtomicU8::new(ALLOW) };
        static FIRST: AtomicI64 = const { AtomicI64::new(NO_CALL) };
    }

    /// One tracer at a time: the signal's handler belongs to the whole process.
    static TRACER: Mutex<()> = Mutex::new(());

    /// Runs `code` and says whether it made a system call. The first call it makes fails with
    /// ENOSYS.
    pub(crate) fn first_call(code: impl FnOnce()) -> Result<Traced> {
        let _tracer = lock(&TRACER);
        // SAFETY: a sigaction is integers and an optional function, for which all-zero bytes are a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigsys as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler is async-signal-safe (I2).
        let previous = unsafe { exchange(&action) }?;
        let traced = match dispatch(true) {
            Err(_) => {
                code();
                Ok(Traced::NotHere)
            }
            Ok(()) => {
                bracket(code);
                dispatch(false)?;
                // ORDERING: Relaxed; written on this very thread, by the handler.
                let first = FIRST.with(|first| first.load(Ordering::Relaxed));
                Ok(if first == NO_CALL { Traced::None } else { Traced::First(first) })
            }
        };
        // SAFETY: the action was there before.
        unsafe { exchange(&previous) }?;
        traced
    }

    /// Sets the action for the signal, and returns the one before.
    ///
    /// # Safety
    /// The handler must be safe in a signal.
    unsafe fn exchange(wanted: &libc::sigaction) -> Result<libc::sigaction> {
        // SAFETY: a sigaction is integers and an optional function, for which all-zero bytes are a value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both structs are live; the caller vouches for the handler.
        match unsafe { libc::sigaction(libc::SIGSYS, wanted, &mut before) } {
            0 => Ok(before),
            _ => Err(system("handle the signal of a system call")),
        }
    }

    fn bracket(code: impl FnOnce()) {
        // ORDERING: Relaxed, and compiler fences: the other side is the kernel and a handler on this
        // thread.
        FIRST.with(|first| first.store(NO_CALL, Ordering::Relaxed));
        SELECTOR.with(|selector| {
            compiler_fence(Ordering::SeqCst);
            selector.store(BLOCK, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            code();
            compiler_fence(Ordering::SeqCst);
            selector.store(ALLOW, Ordering::Relaxed);
        });
    }

    fn dispatch(on: bool) -> Result<()> {
        const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
        let mode: libc::c_ulong = on.into();
        let selector: *mut u8 = if on { SELECTOR.with(AtomicU8::as_ptr) } else { std::ptr::null_mut() };
        let none: libc::c_ulong = 0;
        // SAFETY: the selector is a byte of this thread that outlives the dispatch (I1); no range is
        // exempt.
        match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, none, none, selector) } {
            0 => Ok(()),
            _ => Err(system("switch syscall user dispatch")),
        }
    }

    extern "C" fn on_sigsys(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        const RAX: usize = libc::REG_RAX as usize;
        // ORDERING: Relaxed; this thread's own, as in `bracket`.
        SELECTOR.with(|selector| selector.store(ALLOW, Ordering::Relaxed));
        // SAFETY: the kernel passes the interrupted context of this thread, which no other thread sees now.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let register = &mut context.uc_mcontext.gregs[RAX];
        FIRST.with(|first| first.store(*register, Ordering::Relaxed));
        *register = -i64::from(libc::ENOSYS);
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn sees_a_system_call_by_its_number() {
        let mut result = 0;
        // SAFETY: getppid takes nothing and cannot fail, traced or not.
        let traced = first_call(|| result = unsafe { libc::syscall(libc::SYS_getppid) }).unwrap();
        if traced != Traced::NotHere {
            assert_eq!(traced, Traced::First(libc::SYS_getppid));
            assert_eq!(result, -1, "the call was made to fail");
        }
    }

    #[test]
    fn sees_no_system_call_in_arithmetic() {
        let mut sum = 0_u64;
        let traced = first_call(|| sum = (0..1000).sum()).unwrap();
        assert_eq!(sum, 499_500);
        assert!(matches!(traced, Traced::None | Traced::NotHere), "{traced:?}");
    }

    #[test]
    fn lets_calls_pass_afterwards() {
        first_call(|| ()).unwrap();
        // SAFETY: getppid takes nothing and cannot fail.
        assert!(unsafe { libc::syscall(libc::SYS_getppid) } >= 0);
    }
}
