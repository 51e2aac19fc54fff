//! Terminal that stdout is, if it is one.

use std::io;

use rustix::termios::tcgetwinsize;

/// Size and colours of stdout. Both dimensions are unknown where it is no terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Screen {
    /// Columns to which text is fitted; `None`: it is left as it is.
    pub(super) width: Option<usize>,
    /// Lines.
    pub(super) height: Option<usize>,
    pub(super) has_colours: bool,
}

impl Screen {
    /// Asks the terminal. `NO_COLOR` (no-color.org) and a terminal without capabilities get no
    /// colours.
    pub(super) fn of_stdout() -> Self {
        // Only a terminal has a size.
        let Ok(size) = tcgetwinsize(io::stdout()) else { return Self::default() };
        let known = |dimension: u16| (dimension > 0).then_some(usize::from(dimension));
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { width: known(size.ws_col), height: known(size.ws_row), has_colours: !is_set("NO_COLOR") && !is_dumb }
    }
}
