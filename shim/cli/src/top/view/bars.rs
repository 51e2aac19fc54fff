//! Bars and graphs.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

use super::theme::Theme;

/// Values of a bar, in percent of its length.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bar {
    pub(super) used: Option<f64>,
    pub(super) granted: Option<f64>,
    /// The place of a mark.
    pub(super) mark: Option<f64>,
}

/// Paints a bar of `width` cells.
pub(super) fn bar(theme: &Theme, width: usize, Bar { used, granted, mark }: Bar) -> Line<'static> {
    let glyphs = theme.glyphs();
    let used = eighths(used, width);
    let granted = eighths(granted, width).div_ceil(8);
    // Behind the cell up to which the bar would come, so that it does not hide a small one.
    let mark = mark.filter(|_| width > 0).map(|mark| eighths(Some(mark), width).div_ceil(8).min(width - 1));
    let mut spans: Vec<Span<'static>> = Vec::with_capacity(width);
    for cell in 0..width {
        let filled = used.saturating_sub(cell * 8).min(8);
        let (glyph, style) = match glyphs.right.get(filled.wrapping_sub(1)) {
            _ if mark == Some(cell) => (glyphs.mark, theme.mark()),
            Some(glyph) => (*glyph, theme.used()),
            None if cell < granted => (glyphs.granted, theme.granted()),
            None => (glyphs.free, theme.dim()),
        };
        spans.push(Span::styled(glyph, style));
    }
    Line::from(spans)
}

/// Returns how many eighths of cells a percentage is; at least one, if it is anything.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "bounded by the width"
)]
fn eighths(percent: Option<f64>, width: usize) -> usize {
    let Some(percent) = percent.filter(|percent| *percent > 0.0) else { return 0 };
    ((percent.min(100.0) / 100.0 * (width * 8) as f64).round() as usize).max(1)
}

/// A graph: columns from the bottom, and a level that is drawn where no column is.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) columns: Vec<Option<f32>>,
    pub(super) level: Option<f64>,
    /// Value at the top.
    pub(super) top: f64,
    pub(super) style: Style,
}

impl Graph {
    /// Paints it, the newest column at the right.
    pub(super) fn draw(&self, theme: &Theme, buffer: &mut Buffer, area: Rect) {
        let glyphs = theme.glyphs();
        let height = usize::from(area.height);
        let of = |value: f64| eighths(Some(value * 100.0 / self.top), height);
        let level = self.level.map(|level| (of(level).saturating_sub(1)) / 8);
        for (x, column) in (area.left()..area.right()).zip(&self.columns) {
            let filled = column.map_or(0, |column| of(f64::from(column)));
            for (row, y) in (area.top()..area.bottom()).rev().enumerate() {
                let part = filled.saturating_sub(row * 8).min(8);
                let (glyph, style) = match glyphs.up.get(part.wrapping_sub(1)) {
                    Some(glyph) => (*glyph, self.style),
                    None if level == Some(row) => (glyphs.level, theme.mark()),
                    None => continue,
                };
                buffer.set_string(x, y, glyph, style);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(width: usize, bar: Bar, ascii: bool) -> String {
        let theme = Theme::new(ascii, |name| (name == "LANG").then(|| "C.UTF-8".to_owned()));
        super::bar(&theme, width, bar).spans.iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_has_its_parts_and_its_mark() {
        let bar = |used, granted, mark| Bar { used, granted, mark };
        for (given, unicode, ascii) in [
            (bar(Some(50.0), Some(75.0), None), "████░░··", "####==.."),
            (bar(Some(6.25), None, None), "▌·······", "#......."),
            (bar(Some(0.01), None, None), "▏·······", "#......."),
            (bar(Some(250.0), None, None), "████████", "########"),
            (bar(Some(50.0), None, Some(25.0)), "██│█····", "##|#...."),
            (bar(None, None, Some(100.0)), "·······│", ".......|"),
        ] {
            assert_eq!((text(8, given, false).as_str(), text(8, given, true).as_str()), (unicode, ascii));
        }
    }
}
