//! The picture of a history.

use dlm::Mode;
use dlm_testkit::history::{Answer, History, check, timeline_svg};

use crate::sketch::{EXACT, Sketch, at, ms};

/// An overlap of two holders, and a client whose name is not XML.
fn overlap() -> History {
    let mut sketch = Sketch::default();
    let lease = sketch.grant("A", 1000..1010, 1);
    sketch.grant("<B & 'C'>", 1020..1030, 2);
    sketch.release("A", 1050..1060, &lease, Answer::Unknown);
    sketch.history()
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn the_picture_shows_holds_calls_and_violations() {
    let history = overlap();
    let violations = check(&history, &EXACT);
    let svg = timeline_svg(&history, &EXACT, &violations);
    assert_eq!(count(&svg, "class='sure'"), 2, "{svg}");
    assert_eq!(count(&svg, "class='possible'"), 2);
    assert_eq!(count(&svg, "class='call'"), 3);
    assert_eq!(count(&svg, "<path class='violation'"), violations.len());
    assert!(
        svg.contains("1. rule A, k: &lt;B &amp; &#39;C&#39;&gt; was granted the lock with fence 2 while A")
    );
    // Nothing is loaded from elsewhere, and every element that is opened is closed.
    assert_eq!(count(&svg, "http"), 1, "only the name of the format");
    for element in ["svg", "text", "title", "style"] {
        assert_eq!(count(&svg, &format!("<{element}")), count(&svg, &format!("</{element}>")), "{element}");
    }
}

#[test]
fn a_sure_hold_is_as_wide_as_it_lasts() {
    let history = overlap();
    let svg = timeline_svg(&history, &EXACT, &[]);
    // 1400 pixels are 50 ms; A holds the lock surely from 10 to 50 ms.
    let sure = svg.lines().find(|line| line.contains("class='sure'")).unwrap();
    assert!(sure.contains("x='410.0'") && sure.contains("width='1120.0'"), "{sure}");
    assert_eq!(count(&svg, "class='violation'"), 0);
}

#[test]
fn holds_of_other_modes_look_different_and_every_hold_names_its_mode() {
    let mut sketch = Sketch::default();
    let lease = sketch.grant("A", 1000..1010, 1);
    let lease = sketch.convert("A", 1020..1030, &lease, Mode::Update, 2);
    sketch.grant_as("B", 1040..1050, Mode::Shared, 2);
    sketch.release("A", 1060..1070, &lease, Answer::Ok);
    let svg = timeline_svg(&sketch.history(), &EXACT, &[]);
    for (class, title) in [
        ("sure", "A:1: k, EXCLUSIVE, fence 1"),
        ("sure update", "A:2: k, UPDATE, epoch 2"),
        ("sure shared", "B:1: k, SHARED, epoch 2"),
    ] {
        let bar = svg.lines().find(|line| line.contains(&format!("class='{class}'"))).unwrap();
        assert!(bar.contains(&format!("<title>{title}</title>")), "{bar}");
    }
    assert_eq!(count(&svg, "<title>B:1: k, SHARED, epoch 2<"), 2, "sure and possible");
}

#[test]
fn an_empty_history_is_drawn_too() {
    assert!(timeline_svg(&History::default(), &EXACT, &[]).ends_with("</svg>\n"));
}

#[test]
fn a_long_history_is_cut_around_a_violation() {
    let mut events = overlap().events().to_vec();
    let mut sketch = Sketch::default();
    sketch.grant("early", 10..20, 0);
    sketch.grant("late", 5000..5010, 9);
    events.extend(sketch.history().events().to_vec());
    let history = History::new(events);
    let violations = check(&history, &EXACT);
    let cut = history.around(&violations[0], ms(20));
    assert_eq!(
        cut.events().iter().map(|event| event.called).collect::<Vec<_>>(),
        [at(1000), at(1020), at(1050)]
    );
    assert_eq!(history.around(&violations[0], ms(10)).events().len(), 2);
}
