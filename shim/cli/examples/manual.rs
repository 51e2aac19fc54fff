//! Man pages and completions of `egpu`, made from its command line for the packages.
//!
//! An example, so that neither program has a part of this. `cargo run --example manual -- FOLDER`

use std::{env, error::Error, fs, path::Path};

use clap::CommandFactory as _;
use clap_complete::{Generator as _, Shell};
use egpu_cli::{Cli, completions};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).ok_or("usage: manual FOLDER")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        fs::write(folder.join(shell.file_name("egpu")), completions(shell, Cli::command()))?;
    }
    clap_mangen::generate_to(Cli::command(), folder)?;
    fs::write(folder.join("egpu-config.5"), configuration(runtime_config::config::DEFAULT_TOML))?;
    Ok(())
}

/// egpu-config(5): the commented default file, its comments as text.
fn configuration(file: &str) -> String {
    let mut page = String::from(
        ".TH egpu-config 5\n.SH NAME\negpu-config \\- configuration file of egpu\n.SH SYNOPSIS\n/etc/egpu/config.toml\n\
         .SH DESCRIPTION\n.nh\n.ad l\n",
    );
    for line in file.lines() {
        let said = line.strip_prefix("# ");
        if let Some(title) = said.and_then(|said| said.strip_prefix("---- ")?.strip_suffix(" ----")) {
            page += &format!(".SS {}\n", escaped(title));
        } else if let Some(text) = said.filter(|text| !text.starts_with(' ')) {
            page += &format!("{}\n", escaped(text));
        } else if line.is_empty() {
            page += ".PP\n";
        } else {
            // A key, a table's name, or a line of an example.
            page += &format!(".br\n\\fB{}\\fR\n.br\n", escaped(line.strip_prefix('#').unwrap_or(line)));
        }
    }
    page + ".SH SEE ALSO\n.BR egpu (1),\n.BR egpu-config (1)\n"
}

/// The text as roff prints it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
