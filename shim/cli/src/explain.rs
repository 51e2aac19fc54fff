//! `egpu explain`: the reasons for which a container gets no GPU, or a change is not made.

use base::{Explanation, RefusalCode};

use super::{
    error::CliError,
    exit::Exit,
    listing::{Listing, ListingOptions},
    table::{Cell, Column, wrapped},
    value_parsers,
};

/// Arguments of `egpu explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A refusal has its code in parentheses: GPU request refused (code no-memory). Codes are never renamed."
)]
pub(super) struct ExplainArguments {
    /// The code of a refusal [default: list all]
    #[arg(value_name = "CODE", value_parser = value_parsers::refusal_code(), hide_possible_values = true)]
    code: Option<RefusalCode>,
    #[command(flatten)]
    listing: ListingOptions,
}

const COLUMNS: [Column; 3] = [Column::new("CODE"), Column::text("MEANING"), Column::new("DOCUMENT").wide()];

pub(super) fn run(arguments: &ExplainArguments) -> Result<Exit, CliError> {
    let listing = &arguments.listing;
    listing.view.print(|screen| match arguments.code.map(RefusalCode::explanation) {
        Some(one) => listing.view.text(&one, |_| text(&one, screen.width.unwrap_or(100))),
        None => {
            let all = RefusalCode::ALL.iter().copied().map(RefusalCode::explanation).collect();
            Listing::new(&COLUMNS, all, row).text(listing, screen)
        }
    })?;
    Ok(Exit::Success)
}

fn row(explanation: &Explanation) -> Vec<Vec<Cell>> {
    vec![[explanation.code, explanation.meaning, explanation.document].map(Cell::from).to_vec()]
}

fn text(explanation: &Explanation, width: usize) -> String {
    let Explanation { code, meaning, remedy, document } = explanation;
    let paragraphs = [format!("{code}: {meaning}"), format!("What to do: {remedy}"), format!("More: docs/{document}")];
    let lines = paragraphs.iter().flat_map(|paragraph| wrapped(paragraph, width));
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support;

    #[test]
    fn one_is_told_in_sentences_and_all_in_a_table() {
        let told = text(&RefusalCode::CardTaken.explanation(), 60);
        assert_eq!(
            told,
            "card-taken: Another container has the whole card.\n\
             What to do: Use another card, or wait until it is free;\n\
             `egpu ps` says who has it.\n\
             More: docs/limits.md#waiting-for-room\n"
        );
        let all = RefusalCode::ALL.iter().copied().map(RefusalCode::explanation).collect();
        let table = test_support::shown(Listing::new(&COLUMNS, all, row), &[]);
        assert_eq!(table.lines().count(), RefusalCode::ALL.len() + 1);
    }
}
