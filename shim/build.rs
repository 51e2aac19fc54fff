//! Links libgcc's unwinder into the binaries, so that they need no library but libc's own at run
//! time. The programs for clusters have this script, too.
//!
//! The standard library names `gcc_s` on the linker's command line, which `-static-libgcc` does not
//! change. The linker finds ours first: a script that stands for the static libraries. A newer
//! standard library that names something else is noticed by `make link-test`.
//!
//! Links the shim at a fixed address, as containerd's shim and runc are on Debian. Each of the
//! three processes that are executed for a container would write 25,000 addresses into 121 pages of
//! its own before it begins, and a shim keeps them for the container's life. What that gives up is
//! in docs/threat-model.md.
//!
//! Aligns the binaries in memory to 64 KiB, which is what Linux maps around a page that is touched
//! first. At a random multiple of 4 KiB, each shim maps other neighbours of the same code, and ten
//! of them together keep 2 MiB more.
//!
//! Places what a shim executes together, where the Makefile says so (`EGPU_TEXT_ORDER`), which
//! knows how symbols are named: `text-order.ld`, for linkers that read GNU's scripts (bfd, lld).
//! The programs for clusters do not have it.
#![allow(clippy::print_stdout, reason = "standard output is how a build script speaks to cargo")]

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=CARGO_CFG_TARGET_ENV");
    if env::var("CARGO_CFG_TARGET_OS")? == "linux" && env::var("CARGO_CFG_TARGET_ENV")? == "gnu" {
        let directory = env::var("OUT_DIR")?;
        fs::write(Path::new(&directory).join("libgcc_s.so"), "GROUP ( -lgcc_eh -lgcc )\n")?;
        println!("cargo::rustc-link-search=native={directory}");
        println!("cargo::rustc-link-arg-bins=-Wl,-z,max-page-size=65536");
        if env::var("CARGO_PKG_NAME")? != "egpu-shim" {
            return Ok(());
        }
        println!("cargo::rustc-link-arg-bin=containerd-shim-egpu-v1=-no-pie");
        let order = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("text-order.ld");
        println!("cargo::rerun-if-env-changed=EGPU_TEXT_ORDER");
        let is_release = env::var("PROFILE")? == "release" && env::var("CARGO_CFG_TARGET_ARCH")? == "x86_64";
        if is_release && env::var_os("EGPU_TEXT_ORDER").is_some() {
            println!("cargo::rerun-if-changed={}", order.display());
            println!("cargo::rustc-link-arg-bin=containerd-shim-egpu-v1=-Wl,-T,{}", order.display());
        }
    }
    Ok(())
}
