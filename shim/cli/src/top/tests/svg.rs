//! A screen as a picture.

use std::fmt::Write as _;

use ratatui::{
    buffer::{Buffer, Cell},
    style::{Color, Modifier},
};

/// Size of a cell.
const WIDTH: usize = 9;
const HEIGHT: usize = 18;
const BACKGROUND: &str = "#16191f";
const FOREGROUND: &str = "#d8d8d8";

/// Draws each run of cells of one style as a text that is as wide as they are.
pub(super) fn of(buffer: &Buffer) -> String {
    let (columns, rows) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (width, height) = (columns * WIDTH + 20, rows * HEIGHT + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" \
         font-size=\"15\">\n<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (row, cells) in buffer.content().chunks(columns).enumerate() {
        let mut x = 0;
        for run in cells.chunk_by(|one, other| style(one) == style(other)) {
            let text: String = run.iter().map(Cell::symbol).collect();
            write_run(&mut svg, (x, row), run.len(), &text, style(&run[0]));
            x += run.len();
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn style(cell: &Cell) -> (Color, Modifier) {
    (cell.fg, cell.modifier)
}

fn write_run(
    svg: &mut String,
    (x, y): (usize, usize),
    cells: usize,
    text: &str,
    (colour, modifier): (Color, Modifier),
) {
    let (x, y, length) = (10 + x * WIDTH, 10 + y * HEIGHT, cells * WIDTH);
    let mut fill = match colour {
        Color::Indexed(75) => "#5fafff",
        Color::Indexed(67) => "#5f87af",
        Color::Indexed(214) => "#ffaf00",
        Color::Indexed(246) => "#949494",
        _ => FOREGROUND,
    };
    if modifier.contains(Modifier::REVERSED) {
        writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{length}\" height=\"{HEIGHT}\" fill=\"{fill}\"/>").unwrap();
        fill = BACKGROUND;
    }
    if text.trim().is_empty() {
        return;
    }
    let weight = if modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace(' ', "\u{a0}");
    let base = y + 14;
    writeln!(
        svg,
        "<text x=\"{x}\" y=\"{base}\" textLength=\"{length}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{fill}\"{weight}>{text}</text>"
    )
    .unwrap();
}
