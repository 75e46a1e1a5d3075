use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use super::answer::status;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::process::PerProcess;
use super::status::dlm_status;
use crate::runtime::process::fork_pause::ForkPause;
use crate::runtime::sync::real::RwLock;

/// Log level: a failure that the library could not repair.
pub const DLM_LOG_ERROR: i32 = 1;
/// Log level: a failure that caused no loss.
pub const DLM_LOG_WARN: i32 = 2;
/// Log level: events for operators.
pub const DLM_LOG_INFO: i32 = 3;
/// Log level: what the library does.
pub const DLM_LOG_DEBUG: i32 = 4;

/// Receives one line of the library's log. `message` lives until the callback returns.
///
/// Any thread that uses the library and the library's own threads may call it, several at the same time. It
/// must return soon, must not call the library, and must not exit by longjmp() or an exception.
pub type dlm_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char)>;

/// The destination of one process's log.
#[derive(Default)]
struct Sink {
    target: RwLock<Option<Target>>,
}

static SINKS: PerProcess<Sink> = PerProcess::new();

struct Target {
    level: i32,
    callback: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    user: *mut c_void,
}

// SAFETY: the header says that any thread uses the callback and `user`, several at the same time.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

thread_local! {
    /// Whether this thread is in the callback. Lines logged by the callback itself must not call it again.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct Bridge;

impl ::log::Log for Bridge {
    fn enabled(&self, _: &::log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &::log::Record<'_>) {
        let level = match record.level() {
            ::log::Level::Error => DLM_LOG_ERROR,
            ::log::Level::Warn => DLM_LOG_WARN,
            ::log::Level::Info => DLM_LOG_INFO,
            ::log::Level::Debug | ::log::Level::Trace => DLM_LOG_DEBUG,
        };
        let Ok(sink) = SINKS.this() else { return };
        if INSIDE.replace(true) {
            return;
        }
        // Read-locked while the callback runs: dlm_log_to() waits until the callback has returned.
        if let Some(target) = &*sink.target.read()
            && level <= target.level
            && let Ok(message) = CString::new(record.args().to_string().replace('\0', "\\0"))
        {
            // SAFETY: a callback of this type was set together with this `user`, and has not been
            // replaced. The text ends with NUL and outlives the call.
            unsafe { (target.callback)(target.user, level, message.as_ptr()) };
        }
        INSIDE.set(false);
    }

    fn flush(&self) {}
}

/// Whether this library is the logger of the program. Installs it on the first call.
fn is_ours() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    let _pause = ForkPause::new();
    *OURS.get_or_init(|| ::log::set_logger(&Bridge).is_ok())
}

/// Sends log lines of `level` (DLM_LOG_ERROR to DLM_LOG_DEBUG) and more severe ones to `callback`, for the
/// whole process. A NULL callback, the default, discards them. The callback receives `user`, which may be
/// NULL.
///
/// Blocks while the previous callback runs. When this function returns, that callback is not called again,
/// and its `user` may be freed. A forked child starts without a callback.
///
/// Errors: DLM_INVALID_ARGUMENT also if a callback calls this function; DLM_ALREADY_EXISTS if Rust code of
/// the program has set its own logger.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_log_to(
    level: i32,
    callback: dlm_log_callback,
    user: *mut c_void,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || set(level, callback, user)) }
}

fn set(level: i32, callback: dlm_log_callback, user: *mut c_void) -> Outcome {
    let filter = match level {
        DLM_LOG_ERROR => ::log::LevelFilter::Error,
        DLM_LOG_WARN => ::log::LevelFilter::Warn,
        DLM_LOG_INFO => ::log::LevelFilter::Info,
        DLM_LOG_DEBUG => ::log::LevelFilter::Debug,
        _ => {
            return Err(Failure::invalid(format!(
                "level {level} is not allowed: DLM_LOG_ERROR to DLM_LOG_DEBUG"
            )));
        }
    };
    if INSIDE.get() {
        return Err(Failure::invalid("a log callback must not replace the callback"));
    }
    if !is_ours() {
        return Err(Failure::exists("Rust code in this program has already set a logger"));
    }
    let target = callback.map(|callback| Target { level, callback, user });
    let filter = if target.is_some() { filter } else { ::log::LevelFilter::Off };
    *SINKS.this()?.target.write() = target;
    ::log::set_max_level(filter);
    Ok(())
}
