//! kubectl's plugin `egpu`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_egpu::main()
}
