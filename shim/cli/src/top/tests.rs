//! Screens as text, compared with those in `screens/`: EGPU_WRITE_SCREENS=1 writes them anew, and
//! the picture in the documents.

mod svg;

use std::{env, fs, path::Path, time::Duration};

use cards::SensorReading;
use ledger::ContainerKey;
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, style::Color};
use runtime_config::{
    Bytes,
    request::{PodContainer, Priority},
};
use schedule::Running;

use super::{
    frame::{CardLine, ContainerCardLine, ContainerLines, Frame},
    gather::{EventLine, Look},
    rows::{Grouping, RowKey, Waiting},
    state::{Mode, State},
    view::{self, Theme},
};
use crate::{test_support, usage::MemoryUsage};

const LOOKS: usize = 200;

/// A state that has seen so many cards and containers for some minutes.
pub(super) fn busy_node(cards: usize, containers: usize) -> State {
    let mut state = State::new(Duration::from_secs(1));
    for look in 0..LOOKS {
        state.see(Look { clock: "12:34:56".to_owned(), ..Look::of_frame(frame(cards, containers, look)) });
    }
    state.waiting = (0..usize::from(containers > 0)).map(|_| Waiting::new(&test_support::waiter("patient"))).collect();
    state.events = events();
    state
}

/// Frame of one look: containers in turn on the cards, with shares that swing.
fn frame(cards: usize, containers: usize, look: usize) -> Frame {
    let node = test_support::node();
    let one = Frame::new(&node, &MemoryUsage::nothing_runs(), None);
    let containers: Vec<ContainerLines> = (0..containers)
        .map(|number| {
            let mut lines = vec![line(&one.containers[0].cards[0], number % cards, number, look)];
            if number % 10 == 9 && cards > 1 {
                lines.push(line(&one.containers[0].cards[0], (number + 1) % cards, number, look));
            }
            container(&one.containers[0], number, lines)
        })
        .collect();
    let card = |index| card(&one.cards[0], index, &containers);
    Frame { at_us: 0, cards: (0..cards).map(card).collect(), containers }
}

fn uuid(index: usize) -> String {
    format!("GPU-0000000{index}-0000-0000-0000-000000000000")
}

fn line(one: &ContainerCardLine, card: usize, number: usize, look: usize) -> ContainerCardLine {
    let asked = [40.0, 25.0, 10.0, 5.0][number % 4];
    let wave = [0.6, 0.8, 1.0, 0.9, 0.7][(look / 12 + number) % 5];
    let waited = [None, Some(0.0), Some(3.5), Some(22.0)][number % 4];
    let mut line = one.clone();
    (line.index, line.uuid) = (u32::try_from(card).unwrap(), uuid(card));
    (line.time.granted_percent, line.time.achieved_1s_percent) = (Some(asked), Some(asked * wave));
    line.time.achieved_60s_percent = Some(asked * 0.8);
    (line.throttled_percent, line.waited_1s_percent) = (Some(100.0 - asked), waited);
    line.cap_percent = (number % 3 != 2).then_some([40, 25, 10, 5][number % 4]);
    line.memory_limit_bytes = Bytes((2 + number as u64 % 7) * Bytes::GIB);
    line.memory_used_bytes =
        Some(Bytes(line.memory_limit_bytes.0 / 100 * (20 + (look as u64 / 3 + 13 * number as u64) % 80)));
    line.is_weight_only = false;
    match number % 8 {
        5 => line.busy = Some(false),
        6 => line.running = Running::Waiting.into(),
        7 => (line.running, line.is_weight_only) = (Running::Degraded.into(), true),
        _ => {}
    }
    line
}

fn container(one: &ContainerLines, number: usize, cards: Vec<ContainerCardLine>) -> ContainerLines {
    let id = format!("{number:04}");
    let pod = PodContainer { namespace: "team".into(), pod: format!("job-{number}"), container: "main".into() };
    ContainerLines {
        key: ContainerKey { id: id.clone(), ..one.key.clone() },
        id,
        pod: Some(pod),
        priority: if number % 8 == 6 { Priority::Low } else { Priority::High },
        denials: Some([0, 0, 17, 0, 123_456][number % 5]),
        processes: Some(1 + number % 3),
        cards,
        ..one.clone()
    }
}

fn card(one: &CardLine, index: usize, containers: &[ContainerLines]) -> CardLine {
    let lines: Vec<_> =
        containers.iter().flat_map(|container| &container.cards).filter(|line| line.uuid == uuid(index)).collect();
    let sum =
        |part: fn(&ContainerCardLine) -> f64| lines.iter().map(|line| part(line)).fold(0.0, |sum, part| sum + part);
    let bytes = |part: fn(&ContainerCardLine) -> u64| Bytes(lines.iter().map(|line| part(line)).sum());
    let mut card = one.clone();
    (card.index, card.uuid, card.containers) = (u32::try_from(index).unwrap(), uuid(index), lines.len());
    card.time.achieved_1s_percent = Some(sum(|line| line.time.achieved_1s_percent.unwrap()).min(100.0));
    card.time.achieved_60s_percent = card.time.achieved_1s_percent;
    card.time.granted_percent = None;
    card.promised_percent = 100.min(5 * u32::try_from(lines.len()).unwrap() + 50);
    card.memory_used_bytes = Some(bytes(|line| line.memory_used_bytes.unwrap().0));
    card.memory_granted_bytes = bytes(|line| line.memory_limit_bytes.0);
    card.sensors = (index != 2).then(|| SensorReading {
        card: card.uuid.clone(),
        temperature_celsius: Some(41 + 3 * card.index),
        power_mw: Some(180_000 + 10_000 * card.index),
        power_limit_mw: Some(250_000),
        uncorrected_ecc_errors: (index != 1).then_some(u64::from(card.index / 3)),
    });
    card
}

fn events() -> Vec<EventLine> {
    let event = |clock: &str, kind: &str, count, subject: &str, text: &str| EventLine {
        clock: clock.to_owned(),
        kind: kind.to_owned(),
        count,
        subject: subject.to_owned(),
        text: text.to_owned(),
    };
    vec![
        event("12:30:00", "admitted", 1, "team/job-0/main", "card 0: 2GiB of memory, 40% of its time"),
        event("12:31:07", "denied", 17, "team/job-2/main", "it asked for 512MiB more than its 4GiB of card 0"),
        event("12:33:41", "policy", 1, "card 1", "fair -> fixed"),
    ]
}

fn theme(variables: &[(&str, &str)], ascii: bool) -> Theme {
    let value = |name: &str| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned());
    Theme::new(ascii, value)
}

fn colours() -> Theme {
    theme(&[("LANG", "C.UTF-8"), ("TERM", "xterm-256color")], false)
}

fn paint(state: &State, theme: &Theme, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(state, theme, frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let line = |row: &[ratatui::buffer::Cell]| {
        // A character of two cells leaves the second one empty.
        let mut text = String::new();
        let mut skip = 0;
        for cell in row {
            if skip == 0 {
                text.push_str(cell.symbol());
                skip = ratatui::text::Span::raw(cell.symbol()).width();
            }
            skip = skip.saturating_sub(1);
        }
        format!("{}\n", text.trim_end())
    };
    buffer.content().chunks(usize::from(buffer.area.width)).map(line).collect()
}

/// Compares a screen with the one that is kept.
fn assert_screen(name: &str, buffer: &Buffer) {
    assert_file(&format!("src/top/screens/{name}.txt"), &text(buffer));
}

fn assert_file(path: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os("EGPU_WRITE_SCREENS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, now).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == now, "{} is another now (EGPU_WRITE_SCREENS=1 writes it):\n{now}", path.display());
}

#[test]
fn an_empty_node() {
    let mut state = State::new(Duration::from_secs(1));
    assert_screen("first", &paint(&state, &colours(), 80, 12));
    state.see(Look { clock: "12:34:56".to_owned(), ..Look::of_frame(frame(0, 0, 0)) });
    assert_screen("no-cards", &paint(&state, &colours(), 80, 14));
    state.see(Look { clock: "12:34:56".to_owned(), ..Look::of_frame(frame(2, 0, 0)) });
    assert_screen("no-containers", &paint(&state, &colours(), 80, 24));
}

#[test]
fn one_card_at_80_columns() {
    let mut state = busy_node(1, 5);
    state.selected = Some(state.rows()[3].key());
    assert_screen("one-card", &paint(&state, &colours(), 80, 24));
    state.list.only_card = Some(uuid(0));
    assert_screen("card-alone", &paint(&state, &colours(), 80, 24));
}

#[test]
fn eight_cards_with_forty_containers() {
    let mut state = busy_node(8, 40);
    state.selected = Some(state.rows()[20].key());
    assert_screen("eight-cards-80", &paint(&state, &colours(), 80, 24));
    assert_screen("eight-cards-200", &paint(&state, &colours(), 200, 60));
    state.list.grouping = Grouping::Container;
    state.selected = Some(RowKey::Container(state.frame.as_ref().unwrap().containers[9].key.clone()));
    assert_screen("by-container", &paint(&state, &colours(), 120, 30));
}

#[test]
fn a_terminal_that_is_too_small_is_told_so() {
    let state = busy_node(8, 40);
    assert_eq!(text(&paint(&state, &colours(), 40, 2)), "egpu top needs 60x12, this is 40x2\n\n");
    for (width, height) in [(0, 0), (1, 1), (60, 12), (61, 13), (300, 12), (60, 100)] {
        let _ = paint(&state, &colours(), width, height);
    }
    assert_screen("smallest", &paint(&state, &colours(), 60, 12));
}

#[test]
fn without_colours_nothing_is_coloured_and_nothing_is_lost() {
    let state = busy_node(8, 40);
    let none =
        paint(&state, &theme(&[("LANG", "C.UTF-8"), ("TERM", "xterm-256color"), ("NO_COLOR", "1")], false), 200, 60);
    assert!(none.content().iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
    let some = paint(&state, &colours(), 200, 60);
    assert!(some.content().iter().any(|cell| cell.fg != Color::Reset));
    assert_eq!(text(&none), text(&some));
    let sixteen = paint(&state, &theme(&[("LANG", "C.UTF-8"), ("TERM", "linux")], false), 200, 60);
    assert!(sixteen.content().iter().all(|cell| !matches!(cell.fg, Color::Indexed(_) | Color::Rgb(..))));
    assert_eq!(text(&sixteen), text(&some));
}

#[test]
fn ascii_alone() {
    let mut state = busy_node(2, 9);
    state.selected = Some(state.rows()[4].key());
    let buffer = paint(&state, &theme(&[("TERM", "vt100")], true), 100, 26);
    assert!(text(&buffer).is_ascii(), "{}", text(&buffer));
    assert_screen("ascii", &buffer);
    state.mode = Mode::Help;
    assert!(text(&paint(&state, &theme(&[], true), 80, 24)).is_ascii());
}

#[test]
fn a_failing_card_says_why_in_its_row() {
    let mut state = busy_node(2, 4);
    let frame = state.frame.as_mut().unwrap();
    frame.cards[1].unusable = Some("Xid 79 (GPU has fallen off the bus) since boot".to_owned());
    assert_screen("failing-card", &paint(&state, &colours(), 80, 24));
    state.list.only_card = Some(uuid(1));
    let alone = text(&paint(&state, &colours(), 80, 24));
    assert!(alone.contains("! not offered: Xid 79 (GPU has fallen off the bus) since boot"), "{alone}");
}

#[test]
fn a_ledger_that_cannot_be_read_is_told_and_the_last_frame_stays() {
    let problem = || Err("cannot read the grants in /run/egpu: permission denied".to_owned());
    let mut state = State::new(Duration::from_secs(1));
    let look = || Look { seen: problem(), ..Look::of_frame(frame(1, 1, 0)) };
    state.see(look());
    assert_screen("unreadable-ledger", &paint(&state, &colours(), 80, 12));
    let mut state = busy_node(2, 4);
    state.see(look());
    let screen = text(&paint(&state, &colours(), 80, 24));
    assert!(screen.contains("! cannot read the grants in /run/egpu") && screen.contains("team/job-0/main"), "{screen}");
}

#[test]
fn hostile_names_change_nothing_beside_them() {
    let mut state = busy_node(2, 4);
    let plain = text(&paint(&state, &colours(), 120, 30));
    let long = "x".repeat(4096);
    for name in ["a\u{1b}[2Jb", "\u{202e}txet", "\u{5d0}\u{5d1}\u{5d2}", "e\u{301}\u{301}\u{301}", "a\nb\tc", &long] {
        let frame = state.frame.as_mut().unwrap();
        frame.containers[1].pod = None;
        (frame.containers[1].namespace, frame.containers[1].id) = (name.to_owned(), name.to_owned());
        state.waiting[0].name = name.to_owned();
        state.waiting[0].asked = name.to_owned();
        state.events[1].subject = name.to_owned();
        state.list.filter = String::new();
        let buffer = paint(&state, &colours(), 120, 30);
        let hostile = text(&buffer);
        assert!(!hostile.contains(|character: char| character.is_control() && character != '\n'), "{hostile}");
        assert!(buffer.content().iter().all(|cell| cell.symbol().chars().count() == 1), "{hostile}");
        let changed = plain.lines().zip(hostile.lines()).filter(|(plain, hostile)| plain != hostile).count();
        assert_eq!(changed, 3, "its row, the waiting one, and its event:\n{hostile}");
        let tail = |text: &str| {
            text.lines().find(|line| line.contains("25.0%")).map(|line| line[line.len() - 20..].to_owned())
        };
        assert_eq!(tail(&hostile), tail(&plain), "{hostile}");
    }
}

#[test]
fn questions_and_answers_lie_over_the_screen() {
    use super::changes::{Field, Request, Target};
    let mut state = busy_node(1, 4);
    let key = state.frame.as_ref().unwrap().containers[0].key.clone();
    let request = Request {
        target: Target::Container(key),
        name: "team/job-0/main".to_owned(),
        field: Field::Memory,
        value: "6GiB".to_owned(),
    };
    state.mode = Mode::Ask(request.clone());
    assert_screen("ask", &paint(&state, &colours(), 80, 24));
    state.previewed(request.clone(), Ok("card 0: memory 2 GiB -> 6 GiB\n".to_owned()));
    assert_screen("confirm", &paint(&state, &colours(), 80, 24));
    state.previewed(request, Err("team/job-0/main [k8s.io/0000]: 6GiB of memory of card 0 do not fit: 3GiB of 32GiB are free; it is also held by team/job-1/main".to_owned()));
    assert_screen("refused", &paint(&state, &colours(), 80, 24));
    let long = format!("job-0 does not fit; it is also held by {}: no room", "team/job-1/main, ".repeat(200));
    state.mode = Mode::Told { title: "memory: refused".to_owned(), text: long };
    let screen = text(&paint(&state, &colours(), 80, 24));
    assert!(screen.contains("job-0 does not fit") && screen.contains(": no"), "{screen}");
    state.mode = Mode::Help;
    assert_screen("help", &paint(&state, &colours(), 80, 26));
}

/// `docs/top.svg`: the screen at 110 columns.
#[test]
fn the_picture_in_the_documents_is_the_screen() {
    let mut state = busy_node(2, 9);
    state.selected = Some(state.rows()[3].key());
    assert_file("../../docs/top.svg", &svg::of(&paint(&state, &colours(), 110, 30)));
}
