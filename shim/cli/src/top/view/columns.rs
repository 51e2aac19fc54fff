//! Columns of a table, as many as fit.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Line};

use super::put;

#[derive(Debug, Clone, Copy)]
pub(super) struct Column<C> {
    pub(super) content: C,
    pub(super) title: &'static str,
    /// Cells that it has at least, and at the most.
    pub(super) least: u16,
    pub(super) most: u16,
    /// Columns of a higher rank are left out first.
    pub(super) rank: u8,
    pub(super) is_right: bool,
}

/// A column with its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed<C> {
    pub(super) column: Column<C>,
    pub(super) x: u16,
    pub(super) width: u16,
}

/// Blanks between columns.
const GAP: u16 = 1;

/// Places the columns that fit; what is left is divided among those that take more, evenly.
pub(super) fn place<C: Copy>(columns: &[Column<C>], width: u16) -> Vec<Placed<C>> {
    let mut ranks: Vec<u8> = columns.iter().map(|column| column.rank).collect();
    ranks.sort_unstable();
    let fits = |rank: &u8| {
        let of_rank = columns.iter().filter(|column| column.rank <= *rank);
        of_rank.map(|column| column.least + GAP).sum::<u16>() <= width + GAP
    };
    let highest = ranks.iter().copied().filter(fits).max().unwrap_or(0);
    let mut placed: Vec<Placed<C>> = columns
        .iter()
        .filter(|column| column.rank <= highest)
        .map(|column| Placed { column: *column, x: 0, width: column.least })
        .collect();
    let mut left = width.saturating_sub(placed.iter().map(|one| one.width + GAP).sum::<u16>().saturating_sub(GAP));
    while left > 0 && placed.iter().any(|one| one.width < one.column.most) {
        for one in placed.iter_mut().filter(|one| one.width < one.column.most) {
            if left > 0 {
                (one.width, left) = (one.width + 1, left - 1);
            }
        }
    }
    let mut x = 0;
    for one in &mut placed {
        one.x = x;
        x += one.width + GAP;
    }
    placed
}

impl<C> Placed<C> {
    /// Paints a cell, of a row of an area.
    pub(super) fn draw(&self, buffer: &mut Buffer, area: Rect, row: u16, line: Line<'static>) {
        let width = self.width.min(area.width.saturating_sub(self.x));
        let used = u16::try_from(line.width()).unwrap_or(width).min(width);
        let shift = if self.column.is_right { width - used } else { 0 };
        put(buffer, Rect { x: area.x + self.x + shift, width: width - shift, ..area }, row, line);
    }
}

/// Paints the titles, each over the columns beside it that have none.
pub(super) fn draw_titles<C: Copy>(columns: &[Placed<C>], buffer: &mut Buffer, area: Rect, style: Style) {
    for (position, one) in columns.iter().enumerate().filter(|(_, one)| !one.column.title.is_empty()) {
        let next = columns.iter().skip(position + 1).find(|one| !one.column.title.is_empty());
        let end = next.map_or(area.width, |next| next.x.saturating_sub(GAP)).min(area.width);
        let width = if one.column.is_right { one.width } else { end.saturating_sub(one.x) };
        let title = Line::styled(one.column.title, style);
        Placed { column: one.column, x: one.x, width }.draw(buffer, area, 0, title);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_highest_rank_are_left_out_first_and_the_rest_grows() {
        let column = |content, least, most, rank| Column { content, title: "", least, most, rank, is_right: false };
        let columns = [column('a', 10, 20, 0), column('b', 5, 5, 2), column('c', 8, 30, 1)];
        let widths =
            |width| place(&columns, width).iter().map(|one| (one.column.content, one.x, one.width)).collect::<Vec<_>>();
        assert_eq!(widths(25), [('a', 0, 10), ('b', 11, 5), ('c', 17, 8)]);
        assert_eq!(widths(24), [('a', 0, 13), ('c', 14, 10)]);
        assert_eq!(widths(100), [('a', 0, 20), ('b', 21, 5), ('c', 27, 30)]);
    }
}
