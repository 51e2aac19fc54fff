//! `egpu events`: the events of this node.

mod files;
mod wait;

use std::{collections::VecDeque, io, path::Path};

use jiff::Timestamp;
use ledger::{
    ContainerKey,
    event_log::{self, Entry, Kind},
};
use serde_json::Value;

pub(super) use self::files::EventFiles;
use self::wait::EventWait;
use super::{
    container_name::ContainerEvents,
    error::CliError,
    exit::Exit,
    listing::{Listing, ListingFormat, ListingOptions},
    output::{self, printable},
    table::{Cell, CellState, Column},
    value_parsers,
};

/// Arguments of `egpu events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Kinds:
  admitted, refused, waiting                            requests
  ignored                                               a container seemed to ask for a GPU, and started without one
  rolled-back, released, reclaimed                      ends of grants
  changed, policy                                       what an administrator set
  denied, killed                                        more was asked for than the container may have, or the driver has
  drift                                                 the accounts of a container and the driver disagree
  degraded, recovered                                   a card can no longer take a container off, or can again
  stalled, mediator-ended                               the quota of a container was not enforced: it was ended
  warning                                               anything else to act on

Events are kept until the machine restarts, the last 1 to 2 MiB of them. Repeated events of a container are summed: `count` is their \
number since the last one. `--output json` prints one array, with `--follow` an object a line.")]
pub(super) struct EventsArguments {
    /// Print new events as they come, until interrupted
    #[arg(long, short, conflicts_with_all = ["watch", "sort"])]
    follow: bool,
    /// Only events since then: a time ago (10m, 2h30m) or an instant (2026-01-31T12:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = value_parsers::since)]
    since: Option<Timestamp>,
    /// Only events about this container: its id or enough of its beginning, NAMESPACE/ID, POD,
    /// NAMESPACE/POD or NAMESPACE/POD/CONTAINER
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    /// Only events of this kind; may be given more than once
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    #[command(flatten)]
    listing: ListingOptions,
}

pub(super) fn run(arguments: &EventsArguments) -> Result<Exit, CliError> {
    for kind in &arguments.kinds {
        if Kind::ALL.iter().all(|known| known.name() != kind) {
            crate::output::say(&format!(
                "egpu: this version knows no events of the kind {kind}; `egpu events --help` lists the kinds"
            ));
        }
    }
    let directory = event_log::directory(&crate::config::load()?.state_dir);
    if arguments.follow {
        return follow(arguments, &directory);
    }
    let options = &arguments.listing;
    let text = |screen| listing(EventReader::new(arguments, &directory).read()?).text(options, screen);
    match options.sort {
        None => options.view.print_newest(usize::from(!options.no_header), text)?,
        Some(_) => options.view.print(text)?,
    }
    Ok(Exit::Success)
}

fn follow(arguments: &EventsArguments, directory: &Path) -> Result<Exit, CliError> {
    let wait =
        EventWait::begin(directory).map_err(|source| CliError::Events { directory: directory.to_owned(), source })?;
    let mut reader = EventReader::new(arguments, directory);
    let output = &arguments.listing.view.output;
    if matches!(output, ListingFormat::Table | ListingFormat::Wide) && !arguments.listing.no_header {
        output::print(&row(&TITLES))?;
    }
    loop {
        let text: Result<String, CliError> = reader.read()?.iter().map(|line| line.text(output)).collect();
        output::print(&text?)?;
        if !wait.for_more().map_err(CliError::Wait)? {
            return Ok(Exit::Success);
        }
    }
}

/// Returns the last events about a container, the earliest first.
pub(super) fn latest(state_dir: &Path, key: &ContainerKey, count: usize) -> io::Result<Vec<[String; 4]>> {
    let lines = EventFiles::new(event_log::directory(state_dir)).read()?;
    let is_own = |entry: &Entry| {
        (entry.namespace.as_deref(), entry.container.as_deref()) == (Some(&key.namespace), Some(&key.id))
    };
    let mut own: Vec<EventLine> =
        lines.iter().filter_map(|line| EventLine::new(line)).filter(|line| is_own(&line.entry)).collect();
    own.sort_by(|one, other| one.entry.time.cmp(&other.entry.time));
    let last = own.split_off(own.len().saturating_sub(count));
    Ok(last
        .iter()
        .map(|line| {
            let [time, kind, count, _, _, text] = line.cells();
            [time, kind, count, text]
        })
        .collect())
}

/// Returns the JSON of the last lines of the events, the earliest first.
pub(super) fn last(directory: &Path, count: usize) -> io::Result<VecDeque<Value>> {
    let lines = EventFiles::new(directory.to_owned()).read()?;
    let mut last = VecDeque::new();
    for line in lines.iter().rev().filter_map(|line| EventLine::new(line)).take(count) {
        last.push_front(line.value);
    }
    Ok(last)
}

/// Reads the events that are asked for, on from the last ones.
struct EventReader<'a> {
    arguments: &'a EventsArguments,
    directory: &'a Path,
    files: EventFiles,
    container: Option<ContainerEvents<'a>>,
}

impl<'a> EventReader<'a> {
    fn new(arguments: &'a EventsArguments, directory: &'a Path) -> Self {
        let container = arguments.container.as_deref().map(ContainerEvents::new);
        Self { arguments, directory, files: EventFiles::new(directory.to_owned()), container }
    }

    fn read(&mut self) -> Result<Vec<EventLine>, CliError> {
        let failed = |source| CliError::Events { directory: self.directory.to_owned(), source };
        let lines = self.files.read().map_err(failed)?;
        let lines = lines.iter().filter_map(|line| EventLine::new(line)).collect();
        let mut lines = self.arguments.choose(lines, self.container.as_mut())?;
        // Events of several processes may stand in the file in another order.
        lines.sort_by(|one, other| one.entry.time.cmp(&other.entry.time));
        Ok(lines)
    }
}

/// An event, and its JSON with all that later versions have put into it.
#[derive(Debug)]
struct EventLine {
    entry: Entry,
    value: Value,
}

const TITLES: [&str; 6] = ["TIME", "KIND", "COUNT", "CARD", "CONTAINER", "WHAT"];

impl EventLine {
    /// Parses a line; `None`: half a line, or no event.
    fn new(line: &[u8]) -> Option<Self> {
        Some(Self { entry: event_log::parse(line)?, value: serde_json::from_slice(line).ok()? })
    }

    fn text(&self, format: &ListingFormat) -> Result<String, CliError> {
        match format {
            ListingFormat::Json => output::json_line(&self.value),
            ListingFormat::Template(template) => Ok(template.lines(&self.value)),
            ListingFormat::Table | ListingFormat::Wide => Ok(row(&self.cells())),
        }
    }

    fn cells(&self) -> [String; 6] {
        let Entry { time, kind, namespace, container, pod, card, card_index, count, text } = &self.entry;
        // Whole seconds are enough for people.
        let time = time.parse::<Timestamp>().map_or_else(|_| time.clone(), |time| format!("{time:.0}"));
        let card = match (card_index, card) {
            (Some(index), _) => index.to_string(),
            (None, Some(uuid)) => uuid.chars().take(12).collect(),
            (None, None) => "-".to_owned(),
        };
        let container = match (pod, namespace, container) {
            (Some(pod), ..) => pod.to_string(),
            (None, Some(namespace), Some(id)) => format!("{namespace}/{id}"),
            _ => "-".to_owned(),
        };
        [time, kind.clone(), count.to_string(), card, container, text.clone()].map(|cell| printable(&cell))
    }
}

/// Formats one line of events that come one by one: the widths are not known yet.
fn row(cells: &[impl AsRef<str>; 6]) -> String {
    let [time, kind, count, card, container, text] = cells.each_ref().map(AsRef::as_ref);
    format!("{time:<20}  {kind:<14}  {count:<5}  {card:<12}  {container:<32}  {text}\n")
}

const COLUMNS: [Column; 7] = [
    Column::new(TITLES[0]),
    Column::new(TITLES[1]),
    Column::new(TITLES[2]).spare(),
    Column::new(TITLES[3]).spare(),
    Column::new("UUID").wide(),
    Column::name(TITLES[4]),
    Column::text(TITLES[5]),
];

fn listing(lines: Vec<EventLine>) -> Listing<Value> {
    let rows: Vec<Vec<Cell>> = lines.iter().map(table_row).collect();
    let entries = lines.into_iter().map(|line| line.value).zip(rows.into_iter().map(|row| vec![row]));
    Listing { columns: COLUMNS.to_vec(), entries: entries.collect(), footer: None }
}

fn table_row(line: &EventLine) -> Vec<Cell> {
    let [time, kind, count, card, container, text] = line.cells();
    let state = match Kind::ALL.into_iter().find(|known| known.name() == line.entry.kind) {
        Some(Kind::Killed | Kind::Stalled | Kind::MediatorEnded | Kind::Degraded) => CellState::Bad,
        Some(Kind::Refused | Kind::Denied | Kind::Drift | Kind::Warning | Kind::RolledBack) => CellState::Warning,
        Some(Kind::Admitted | Kind::Recovered) => CellState::Good,
        _ => CellState::Plain,
    };
    let uuid = line.entry.card.as_deref().unwrap_or("-");
    vec![
        time.into(),
        Cell::from(kind).in_state(state),
        Cell::number(line.entry.count, count),
        card.into(),
        uuid.into(),
        container.into(),
        text.into(),
    ]
}

impl EventsArguments {
    fn choose(
        &self,
        lines: Vec<EventLine>,
        container: Option<&mut ContainerEvents<'_>>,
    ) -> Result<Vec<EventLine>, CliError> {
        // First: a container without such an event may be the one that is meant.
        let mut lines = match container {
            Some(container) => container.choose(lines, |line| &line.entry)?,
            None => lines,
        };
        lines.retain(|line| self.wants(&line.entry));
        Ok(lines)
    }

    fn wants(&self, entry: &Entry) -> bool {
        // An event without a time may have been since.
        let is_since =
            self.since.is_none_or(|since| entry.time.parse::<Timestamp>().map_or(true, |time| time >= since));
        let is_kind = self.kinds.is_empty() || self.kinds.contains(&entry.kind);
        is_since && is_kind
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        arguments: EventsArguments,
    }

    fn arguments(line: &str) -> EventsArguments {
        let words = std::iter::once("events").chain(line.split_whitespace());
        Command::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).arguments
    }

    fn line(text: &str) -> EventLine {
        EventLine::new(text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn the_help_names_every_kind() {
        let help = <Command as clap::CommandFactory>::command().render_long_help().to_string();
        for kind in Kind::ALL {
            assert!(help.contains(kind.name()), "{}", kind.name());
        }
    }

    const REFUSED: &str = r#"{"time":"2026-01-31T12:00:00.250000Z","kind":"refused","namespace":"k8s.io","container":"abcdef","card_index":3,"count":1,"text":"it is full"}"#;
    const DENIED: &str = r#"{"time":"2026-01-31T12:00:01.5Z","kind":"denied","namespace":"default","container":"web","card":"GPU-11111111-2222","count":40,"text":"too much"}"#;
    const MELTED: &str =
        r#"{"time":"2026-01-31T12:00:02Z","kind":"melted","card":"GPU-1","heat":2000,"text":"hot\u001b[2J"}"#;

    #[test]
    fn events_are_chosen_by_time_and_kind() {
        let lines = [line(REFUSED), line(DENIED), line(MELTED)];
        let chosen = |words: &str| {
            let arguments = arguments(words);
            let kinds = lines.iter().filter(|line| arguments.wants(&line.entry)).map(|line| line.entry.kind.as_str());
            kinds.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(chosen(""), "refused denied melted");
        assert_eq!(chosen("--kind melted --kind refused"), "refused melted");
        assert_eq!(chosen("--since 2026-01-31T12:00:01Z"), "denied melted");
        assert_eq!(chosen("--since 10m"), "");
    }

    #[test]
    fn a_container_is_looked_up_among_all_events() {
        let web = DENIED.replace("denied", "admitted");
        let web_2 = DENIED.replace(r#""web""#, r#""web-2""#);
        let of_pod = |namespace: &str, text: &str| {
            let pod = format!(r#""pod":{{"namespace":"{namespace}","pod":"train-0","container":"main"}},"card_index""#);
            text.replace("abcdef", namespace).replace(r#""card_index""#, &pod)
        };
        let later = of_pod("two", REFUSED).replace("12:00:00", "13:00:00");
        let lines = [web, web_2, of_pod("one", REFUSED), later];
        let count = |words: &str| {
            let arguments = arguments(words);
            let mut container = arguments.container.as_deref().map(ContainerEvents::new);
            let lines = lines.iter().map(|text| line(text)).collect();
            arguments.choose(lines, container.as_mut()).map(|chosen| chosen.len())
        };
        assert_eq!(count("--container web --kind denied").unwrap(), 0, "not those of web-2");
        assert_eq!(count("--container web-2 --kind denied").unwrap(), 1);
        let since = "--since 2026-01-31T12:30:00Z";
        assert!(matches!(count(&format!("--container train-0 {since}")), Err(CliError::Ambiguous { .. })));
        assert_eq!(count(&format!("--container two/train-0 {since}")).unwrap(), 1);
    }

    #[test]
    fn wrong_times_are_refused() {
        for wrong in ["yesterday", "10", "-10m", ""] {
            let words = ["events", "--since", wrong];
            assert!(Command::try_parse_from(words).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_table_for_people_and_all_keys_for_programs() {
        let pod = r#""pod":{"namespace":"team","pod":"train-0","container":"main"},"card_index""#;
        let of_pod = REFUSED.replace(r#""card_index""#, pod);
        let lines = [line(REFUSED), line(DENIED), line(MELTED), line(&of_pod)];
        let text = crate::test_support::shown(
            listing(
                lines.iter().map(|line| EventLine { entry: line.entry.clone(), value: line.value.clone() }).collect(),
            ),
            &[],
        );
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows[1], "2026-01-31T12:00:00Z  refused  1      3             k8s.io/abcdef      it is full",
            "{text}"
        );
        assert_eq!(
            rows[2], "2026-01-31T12:00:01Z  denied   40     GPU-11111111  default/web        too much",
            "{text}"
        );
        assert!(rows[3].contains("melted") && rows[3].ends_with("hot?[2J"), "{text}");
        assert!(
            lines[2].text(&ListingFormat::Json).unwrap().contains(r#""heat":2000"#),
            "what later versions add is shown"
        );
        assert!(rows[4].contains("  team/train-0/main  it is full"), "{text}");
        assert_eq!(lines[3].text(&ListingFormat::Json).unwrap().trim_end(), of_pod);
        assert_eq!(lines[1].text(&ListingFormat::Json).unwrap().trim_end(), DENIED);
        let row = lines[0].text(&ListingFormat::Table).unwrap();
        assert!(row.starts_with("2026-01-31T12:00:00Z  refused         1      3             k8s.io/abcdef  "), "{row}");
    }
}
