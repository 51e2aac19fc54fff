//! `egpu events`: the events of this node.

mod files;
mod wait;

use jiff::Timestamp;
use nvidia_glue::event_log::{self, Entry, Kind};
use serde_json::Value;

pub(super) use self::files::EventFiles;
use self::wait::EventWait;
use super::{
    Exit, Output,
    container_name::ContainerEvents,
    error::CliError,
    output::{self, Format, printable},
    value_parsers,
};

/// Arguments of `egpu events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Kinds:
  admitted, refused, rolled-back, released, reclaimed   requests and grants
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
    #[arg(long, short)]
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
    output: Output,
}

pub(super) fn run(arguments: &EventsArguments) -> Result<Exit, CliError> {
    for kind in &arguments.kinds {
        if Kind::ALL.iter().all(|known| known.name() != kind) {
            super::say(&format!(
                "egpu: this version knows no events of the kind {kind}; `egpu events --help` lists the kinds"
            ));
        }
    }
    let directory = event_log::directory(&super::load()?.state_dir);
    let failed = |source| CliError::Events { directory: directory.clone(), source };
    let wait = if arguments.follow { Some(EventWait::begin(&directory).map_err(failed)?) } else { None };
    let mut files = EventFiles::new(directory.clone());
    let mut container = arguments.container.as_deref().map(ContainerEvents::new);
    let mut read = || -> Result<Vec<EventLine>, CliError> {
        let lines = files.read().map_err(failed)?;
        let lines = lines.iter().filter_map(|line| EventLine::new(line)).collect();
        let mut lines = arguments.choose(lines, container.as_mut())?;
        // Events of several processes may stand in the file in another order.
        lines.sort_by(|one, other| one.entry.time.cmp(&other.entry.time));
        Ok(lines)
    };
    let is_json = arguments.output.output == Format::Json;
    let first = read()?;
    let Some(wait) = wait else {
        let values: Vec<&Value> = first.iter().map(|line| &line.value).collect();
        return super::show(arguments.output, &values, || table(&first));
    };
    if !is_json {
        output::print(&row(&TITLES))?;
    }
    let mut lines = first;
    loop {
        let text: Result<String, CliError> = lines.iter().map(|line| line.text(is_json)).collect();
        output::print(&text?)?;
        if !wait.for_more().map_err(CliError::Wait)? {
            return Ok(Exit::Success);
        }
        lines = read()?;
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

    fn text(&self, is_json: bool) -> Result<String, CliError> {
        if is_json { output::json_line(&self.value) } else { Ok(row(&self.cells())) }
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

fn table(lines: &[EventLine]) -> String {
    let rows: Vec<Vec<String>> = lines.iter().map(|line| line.cells().into()).collect();
    output::table(&TITLES, &rows)
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
        let text = table(&lines);
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
        assert!(lines[2].text(true).unwrap().contains(r#""heat":2000"#), "what later versions add is shown");
        assert!(rows[4].contains("  team/train-0/main  it is full"), "{text}");
        assert_eq!(lines[3].text(true).unwrap().trim_end(), of_pod);
        assert_eq!(lines[1].text(true).unwrap().trim_end(), DENIED);
        let row = lines[0].text(false).unwrap();
        assert!(row.starts_with("2026-01-31T12:00:00Z  refused         1      3             k8s.io/abcdef  "), "{row}");
    }
}
