//! The beginning of a program, without Rust's.

use super::ignore_broken_pipes;

/// Makes a function, which returns the exit code, the program of a crate without a `main` of
/// Rust's.
///
/// The program has the few functions of the C library's `libm` that are called itself, hidden from
/// libraries that it loads: the library would be one more to map, and to keep, in each process.
#[macro_export]
macro_rules! program {
    ($function:path) => {
        std::arch::global_asm!(".hidden exp, log, log2, pow");
        $crate::program!(libm exp(x));
        $crate::program!(libm log(x));
        $crate::program!(libm log2(x));
        $crate::program!(libm pow(x, y));

        // SAFETY: C's start calls the one symbol of this name in a program.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        extern "C" fn main() -> i32 {
            $crate::prepare_process();
            $function()
        }
    };
    (libm $function:ident($($argument:ident),*)) => {
        // SAFETY: what C's function of this name takes and returns.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        extern "C" fn $function($($argument: f64),*) -> f64 {
            $crate::libm::$function($($argument),*)
        }
    };
}

/// Does what matters of what Rust does before `main`: a write that nobody reads is an error only,
/// and no file gets the number of a standard stream that is not there.
pub fn prepare_process() {
    ignore_broken_pipes();
    for number in 0..3 {
        // SAFETY: integers only.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            // SAFETY: the kernel reads a C string. The lowest free number is this one.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        }
    }
}
