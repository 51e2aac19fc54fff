//! Colours and characters that the terminal has.

use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthChar;

/// Colours and characters of the screen.
///
/// Blue and orange, which those who do not tell red from green tell apart; and nothing is said by
/// colour alone.
#[derive(Debug, Clone)]
pub(in crate::top) struct Theme {
    pub(super) is_ascii: bool,
    colours: Colours,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    None,
    Sixteen,
    Many,
}

/// Characters of bars and graphs.
#[derive(Debug)]
pub(super) struct Glyphs {
    /// Bars of one to eight eighths of a cell, growing to the right.
    pub(super) right: [&'static str; 8],
    /// The same, growing upwards.
    pub(super) up: [&'static str; 8],
    /// Granted, and not used.
    pub(super) granted: &'static str,
    /// Neither.
    pub(super) free: &'static str,
    /// The share that was asked for, in a bar and in a graph.
    pub(super) mark: &'static str,
    pub(super) level: &'static str,
    /// A row whose parts are shown, and one whose are not.
    pub(super) open: &'static str,
    pub(super) folded: &'static str,
    pub(super) ellipsis: &'static str,
    pub(super) degree: &'static str,
}

const UNICODE: Glyphs = Glyphs {
    right: ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"],
    up: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    granted: "░",
    free: "·",
    mark: "│",
    level: "─",
    open: "▾",
    folded: "▸",
    ellipsis: "…",
    degree: "°C",
};

const ASCII: Glyphs = Glyphs {
    right: ["#"; 8],
    up: [".", ".", ":", ":", "|", "|", "#", "#"],
    granted: "=",
    free: ".",
    mark: "|",
    level: "-",
    open: "-",
    folded: "+",
    ellipsis: "~",
    degree: "C",
};

impl Theme {
    /// Theme for the terminal that the environment names.
    pub(in crate::top) fn new(ascii: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(&variable).unwrap_or_default().to_lowercase();
        let terminal = variable("TERM").unwrap_or_default();
        let colours = match variable("NO_COLOR") {
            Some(_) => Colours::None,
            None if terminal.contains("256color") || variable("COLORTERM").is_some() => Colours::Many,
            None if terminal.starts_with("vt") => Colours::None,
            None => Colours::Sixteen,
        };
        Self { is_ascii: ascii || !(locale.contains("utf-8") || locale.contains("utf8")), colours }
    }

    pub(super) fn glyphs(&self) -> &'static Glyphs {
        if self.is_ascii { &ASCII } else { &UNICODE }
    }

    /// Style of memory that is used, and of time that is achieved.
    pub(super) fn used(&self) -> Style {
        self.coloured(Color::LightBlue, 75)
    }

    /// Style of what is granted or promised, and not used.
    pub(super) fn granted(&self) -> Style {
        self.coloured(Color::Blue, 67)
    }

    /// The mark of what was asked for, and what takes time: held back, waiting.
    pub(super) fn mark(&self) -> Style {
        self.coloured(Color::Yellow, 214)
    }

    /// Style of what wants attention. A word or a `!` says it, too.
    pub(super) fn bad(&self) -> Style {
        self.mark().add_modifier(Modifier::BOLD)
    }

    pub(super) fn heading(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim(&self) -> Style {
        match self.colours {
            Colours::None => Style::new(),
            Colours::Sixteen => Style::new().fg(Color::Gray),
            Colours::Many => Style::new().fg(Color::Indexed(246)),
        }
    }

    pub(super) fn selected(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn coloured(&self, sixteen: Color, many: u8) -> Style {
        match self.colours {
            Colours::None => Style::new(),
            Colours::Sixteen => Style::new().fg(sixteen),
            Colours::Many => Style::new().fg(Color::Indexed(many)),
        }
    }

    /// Replaces characters that take no cell or turn the line round, and those that the terminal
    /// cannot show.
    pub(super) fn text(&self, text: &str) -> String {
        text.chars().map(|character| if self.shows(character) { character } else { '?' }).collect()
    }

    fn shows(&self, character: char) -> bool {
        let is_one_or_two = character.width().is_some_and(|width| width > 0);
        is_one_or_two && !is_right_to_left(character) && (!self.is_ascii || character.is_ascii())
    }

    /// Cuts a text to a number of cells, at its end.
    pub(super) fn clip(&self, text: &str, cells: usize) -> String {
        let mut clipped = String::new();
        let mut used = 0;
        for character in text.chars() {
            let character = if self.shows(character) { character } else { '?' };
            let width = character.width().unwrap_or(1);
            if used + width > cells {
                // Room for the ellipsis.
                while used >= cells && used > 0 {
                    used -= clipped.pop().and_then(|last| last.width()).unwrap_or(used);
                }
                if cells > 0 {
                    clipped.push_str(self.glyphs().ellipsis);
                }
                break;
            }
            clipped.push(character);
            used += width;
        }
        clipped
    }
}

/// Letters of the scripts that are written from right to left: a terminal may turn round what is
/// beside them.
fn is_right_to_left(character: char) -> bool {
    matches!(
        character,
        '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(variables: &'static [(&str, &str)]) -> Theme {
        let value = |name: &str| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned());
        Theme::new(false, value)
    }

    #[test]
    fn the_environment_says_what_the_terminal_has() {
        let plain = theme(&[("TERM", "linux"), ("LANG", "C")]);
        assert!(plain.is_ascii && plain.colours == Colours::Sixteen);
        let modern = theme(&[("TERM", "xterm-256color"), ("LANG", "C"), ("LC_ALL", "de_DE.UTF-8")]);
        assert!(!modern.is_ascii && modern.colours == Colours::Many);
        let none = theme(&[("TERM", "xterm-256color"), ("NO_COLOR", "1"), ("LC_CTYPE", "C.utf8")]);
        assert!(!none.is_ascii && none.colours == Colours::None);
        assert!(theme(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]).is_ascii, "the first that is set counts");
    }

    #[test]
    fn a_text_has_as_many_cells_as_it_may() {
        let theme = theme(&[("LANG", "C.UTF-8")]);
        for (text, clipped) in [
            ("short", "short"),
            ("exactly 8", "exactly…"),
            ("字字字字字", "字字字…"),
            ("e\u{301}\u{301}", "e??"),
            ("\u{5d0}bc", "?bc"),
            ("\u{1b}[2J", "?[2J"),
        ] {
            assert_eq!(theme.clip(text, 8), clipped, "{text}");
        }
        assert_eq!(theme.clip("ab", 0), "");
        assert_eq!(theme.clip("字字", 3), "字…");
        let ascii = Theme { is_ascii: true, ..theme };
        assert_eq!(ascii.clip("größer als acht", 8), "gr??er ~");
    }
}
