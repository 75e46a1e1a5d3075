use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use parking_lot::RwLock;

use super::answer::status;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::process::PerProcess;
use super::status::dlm_status;

/// Something failed and the library could not put it right.
pub const DLM_LOG_ERROR: i32 = 1;
/// Something failed and nothing was lost by it.
pub const DLM_LOG_WARN: i32 = 2;
/// What an operator may want to know.
pub const DLM_LOG_INFO: i32 = 3;
/// What the library does.
pub const DLM_LOG_DEBUG: i32 = 4;

/// Receives one line of the library's log. `message` lives until the callback returns.
///
/// It is called from any thread that uses the library and from the library's own, from several at once.
/// It must return soon, must not call the library, and must not leave by longjmp() or an exception.
pub type dlm_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char)>;

/// Where one process's log goes.
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

// SAFETY: the header says that the callback, and with it `user`, is used from any thread, several at once.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

thread_local! {
    /// This thread is in the callback: what is logged by what it does would come back to it.
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
        // Read-locked while the callback runs, so that it has stopped running when it is replaced.
        if let Some(target) = &*sink.target.read()
            && level <= target.level
            && let Ok(message) = CString::new(record.args().to_string().replace('\0', "\\0"))
        {
            // SAFETY: a callback of this type was set together with this `user`, and has not been
            // replaced; the text ends with NUL and outlives the call.
            unsafe { (target.callback)(target.user, level, message.as_ptr()) };
        }
        INSIDE.set(false);
    }

    fn flush(&self) {}
}

/// Whether the log of this program is ours to send somewhere.
fn is_ours() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| ::log::set_logger(&Bridge).is_ok())
}

/// Sends lines of `level` (DLM_LOG_ERROR to DLM_LOG_DEBUG) and worse to `callback`, for the whole process;
/// NULL sends them nowhere, which is the default. `user` is handed to the callback.
///
/// When this returns, the callback that was set before is not running any more and will not be called
/// again: its `user` may be freed. A forked child begins without a callback. Blocks while a callback runs.
///
/// DLM_INVALID_ARGUMENT, also from within a callback; DLM_ALREADY_EXISTS when Rust code of the program has
/// set a logger of its own
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
        return Err(Failure::invalid("the callback cannot be replaced from within"));
    }
    if !is_ours() {
        return Err(Failure::exists("this program has a logger already, set by Rust code"));
    }
    let target = callback.map(|callback| Target { level, callback, user });
    let filter = if target.is_some() { filter } else { ::log::LevelFilter::Off };
    *SINKS.this()?.target.write() = target;
    ::log::set_max_level(filter);
    Ok(())
}
