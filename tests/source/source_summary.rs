//! The arithmetic of `cargo bench --bench summary`, and the program that it compiles for another commit.

// The paths are those of the benchmark, because its modules import each other by them.
#[allow(dead_code, reason = "used by the benchmark")]
#[path = "../../benches/summary/arguments.rs"]
mod arguments;
#[allow(dead_code, reason = "used by the benchmark")]
#[path = "../../benches/summary/spread.rs"]
mod spread;
#[allow(dead_code, reason = "used by the benchmark")]
#[path = "../../benches/summary/worker.rs"]
mod worker;

use arguments::{Arguments, Group};
use spread::{ROUNDS, Spread, ratio_of_round};

/// Speeds of two programs on a busy machine: one differs from round to round by up to `noise`, in both directions. B
/// has `b` times the speed of A. The machine loses a fifth of its speed during the run.
fn ratios(random: &mut fastrand::Rng, noise: f64, b: f64) -> Vec<f64> {
    let mut turn = 0.0;
    let mut speed = |of: f64| {
        turn += 1.0;
        let machine = 1.0 - 0.2 * turn / (4 * ROUNDS) as f64;
        1e6 * of * machine * (1.0 + noise * (2.0 * random.f64() - 1.0))
    };
    let round = |_| {
        let outer = speed(1.0);
        let inner = [speed(b), speed(b)];
        ratio_of_round([outer, speed(1.0)], inner)
    };
    (0..ROUNDS).map(round).collect()
}

/// Returns in how many of 1,000 runs a cell is called slower. Like the benchmark, it measures such a cell once more.
fn called_slower(noise: f64, b: f64) -> usize {
    let mut random = fastrand::Rng::with_seed(1);
    let mut is_slower = || Spread::of(&ratios(&mut random, noise, b)).is_slower();
    (0..1000).filter(|_| is_slower() && is_slower()).count()
}

#[test]
fn a_regression_is_reported_and_noise_is_not() {
    for (noise, b, expected) in [
        // The same speed.
        (0.02, 1.0, 0..=0),
        (0.3, 1.0, 0..=5),
        // Faster.
        (0.1, 1.3, 0..=0),
        // Slower by less than what is tolerated.
        (0.02, 0.95, 0..=0),
        // Slower by more, on a quiet and on a busy machine.
        (0.02, 0.85, 1000..=1000),
        (0.1, 0.7, 990..=1000),
        (0.3, 0.5, 950..=1000),
    ] {
        let reported = called_slower(noise, b);
        assert!(expected.contains(&reported), "noise {noise}, {b} times the speed: {reported} of 1000");
    }
}

#[test]
fn the_spread_is_the_median_and_the_quartiles() {
    let seen = Spread::of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
    assert_eq!(seen, Spread { low: 2.0, median: 3.0, high: 4.0 });
    assert_eq!(Spread::of(&[1.0, 2.0]), Spread { low: 1.25, median: 1.5, high: 1.75 });
    assert_eq!(Spread::of(&[0.5]), Spread { low: 0.5, median: 0.5, high: 0.5 });
}

#[test]
fn the_program_for_another_commit_measures() {
    let (mut answers, requests) = (Vec::new(), "1 20\n4 20\n".as_bytes());
    worker::serve("id_lock", requests, &mut answers).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    let lines: Vec<_> = answers.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "ready"), "{answers}");
    assert!(lines[1..].iter().all(|line| line.parse::<f64>().unwrap() > 0.0), "{answers}");

    let mut answers = Vec::new();
    worker::serve("no such store", "1 20\n".as_bytes(), &mut answers).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    assert!(answers.lines().count() == 1 && !answers.starts_with("ready"), "{answers}");
}

#[test]
fn the_commit_to_compare_with_is_the_named_one_or_that_of_the_file() {
    let commit = include_str!("../../benches/summary.commit").trim();
    assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit:?}");
    let parse = |words: &str| Arguments::parse(words.split(' ').map(str::to_owned), commit);
    let against = |words: &str| parse(words).unwrap().against;
    assert_eq!(against("--bench"), None);
    assert_eq!(against("--bench --against").as_deref(), Some(commit));
    assert_eq!(against("--against --bench").as_deref(), Some(commit));
    assert_eq!(against("--bench --against 0123abcd").as_deref(), Some("0123abcd"));
    let both = parse("--bench --against embedded").unwrap();
    assert_eq!((both.against.as_deref(), both.groups), (Some(commit), vec![Group::Embedded]));
    assert!(parse("--bench hbsae").is_err());
}
