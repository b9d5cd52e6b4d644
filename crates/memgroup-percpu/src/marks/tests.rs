//! Marks, as one thread sees them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{CHUNK, CLASSES, Leaves, Marks, NUMBERS_MAX, Piece, ROWS_MAX, Scratch};

/// Marks in which all `numbers` are provided.
fn marks_of(rows: usize, numbers: &[u32]) -> &'static Marks {
    let max = numbers.iter().max().map_or(1, |last| last + 1);
    let marks = Box::leak(Box::new(Marks::new(rows, max)));
    numbers.iter().for_each(|&number| marks.provide(number));
    marks
}

/// The numbers that a collection delivers, of those that `wanted` accepts.
fn collected(
    marks: &Marks,
    scratch: &mut Scratch,
    wanted: impl FnMut(u32) -> bool,
) -> Vec<(u32, Vec<usize>)> {
    let mut all = Vec::new();
    marks.collect(scratch, wanted, |number, rows| all.push((number, rows.collect())), || ());
    all
}

fn panic_of(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    panic
        .downcast::<String>()
        .map_or_else(|other| (*other.downcast::<&str>().expect("text")).to_owned(), |text| *text)
}

/// Numbers at the edges of words and chunks, and of two chunks of one class.
const EDGES: [u32; 12] = {
    let (chunk, class) = (CHUNK as u32, (CHUNK * CLASSES) as u32);
    [0, 1, 63, 64, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, class - 1, class, class + 64, 2 * class]
};

#[test]
fn delivers_each_marked_number_once_with_its_rows() {
    let rows = [0, 1, 63, 64, 65, 128, 299];
    let marks = marks_of(300, &EDGES);
    let mut scratch = Scratch::new(300);
    for turn in 0..3 {
        let mut expected = Vec::new();
        for (index, &number) in EDGES.iter().enumerate() {
            // Each number in rows of its own choice, all of them in the last turn.
            let own: Vec<usize> = rows
                .into_iter()
                .enumerate()
                .filter_map(|(at, row)| (turn == 2 || (at + index) % 3 == turn).then_some(row))
                .collect();
            for &row in &own {
                let mark = marks.of(number);
                assert!(!mark.is_set(row));
                mark.set(row);
                mark.set(row);
                assert!(mark.is_set(row) && !mark.is_clean());
            }
            for end in [0, 64, 300, 1000] {
                let before = own.iter().copied().filter(|&row| row < end);
                assert!(marks.of(number).marked_rows(end).eq(before), "{number} before {end}");
            }
            expected.push((number, own));
        }
        assert!(!marks.is_clean());
        assert_eq!(collected(marks, &mut scratch, |_| true), expected, "turn {turn}");
        assert!(marks.is_clean());
        assert!(EDGES.iter().all(|&number| marks.of(number).is_clean()));
        assert_eq!(collected(marks, &mut scratch, |_| true), [], "nothing is left");
    }
}

/// Collects in pieces of so many marks; returns the numbers of each piece with their rows.
fn collected_in_pieces(
    marks: &Marks,
    scratch: &mut Scratch,
    marks_max: usize,
) -> Vec<Vec<(u32, Vec<usize>)>> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    loop {
        let mut all = Vec::new();
        let piece = Piece { from, marks_max };
        let each = |number, rows: super::Rows<'_>| all.push((number, rows.collect()));
        let next = marks.collect_piece(scratch, piece, |_| true, each, || ());
        pieces.push(all);
        assert_eq!(marks.is_clean(), next.is_none(), "{piece:?} goes on with {next:?}");
        match next {
            Some(next) => from = next,
            None => return pieces,
        }
    }
}

#[test]
fn delivers_each_marked_number_once_in_pieces() {
    let numbers: Vec<u32> = EDGES.into_iter().chain(100..300).collect();
    let marks = marks_of(5, &numbers);
    let mut scratch = Scratch::new(5);
    for marks_max in [1, 2, 3, 64, 65, 200, 1000, usize::MAX] {
        let mut expected = Vec::new();
        for &number in &numbers {
            let rows: Vec<usize> = (0..5).filter(|row| row % (1 + number as usize % 3) == 0).collect();
            rows.iter().for_each(|&row| marks.of(number).set(row));
            expected.push((number, rows));
        }
        expected.sort();
        let pieces = collected_in_pieces(marks, &mut scratch, marks_max);
        let marks_of =
            |piece: &Vec<(u32, Vec<usize>)>| piece.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        for piece in &pieces {
            assert!(
                piece.len() == 1 || marks_of(piece) <= marks_max,
                "{piece:?} has more than {marks_max} marks"
            );
        }
        assert_eq!(pieces.concat(), expected, "pieces of {marks_max} marks");
        let all = expected.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        assert_eq!(pieces.len() > 1, all > marks_max, "{} pieces", pieces.len());
    }
    assert_eq!(collected(marks, &mut scratch, |_| true), [], "nothing is left");
}

#[test]
fn leaves_numbers_before_a_piece_and_unwanted_ones() {
    let marks = marks_of(1, &EDGES);
    let mut scratch = Scratch::new(1);
    EDGES.iter().for_each(|&number| marks.of(number).set(0));
    let mut taken = Vec::new();
    let piece = Piece { from: 64, marks_max: 3 };
    let next = marks.collect_piece(
        &mut scratch,
        piece,
        |number| number != 64,
        |number, _| taken.push(number),
        || (),
    );
    assert_eq!((taken.as_slice(), next), (&EDGES[4..6], Some(EDGES[6])), "an unwanted number counts");
    let rest: Vec<u32> =
        collected(marks, &mut scratch, |_| true).into_iter().map(|(number, _)| number).collect();
    assert_eq!(rest, [&EDGES[..4], &EDGES[6..]].concat());
}

#[test]
fn holds_the_most_rows_and_numbers() {
    let marks = marks_of(ROWS_MAX, &[NUMBERS_MAX - 1]);
    let mark = marks.of(NUMBERS_MAX - 1);
    mark.set(ROWS_MAX - 1);
    let mut scratch = Scratch::new(ROWS_MAX);
    assert_eq!(collected(marks, &mut scratch, |_| true), [(NUMBERS_MAX - 1, vec![ROWS_MAX - 1])]);
    (0..ROWS_MAX).for_each(|row| mark.set(row));
    assert_eq!(collected(marks, &mut scratch, |_| true), [(NUMBERS_MAX - 1, (0..ROWS_MAX).collect())]);
    assert!(marks.is_clean());
}

#[test]
fn leaves_unwanted_numbers_marked_and_asks_once_for_each() {
    let marks = marks_of(3, &EDGES);
    let mut scratch = Scratch::new(3);
    for &number in &EDGES {
        (0..3).for_each(|row| marks.of(number).set(row));
    }
    let (odd, even): (Vec<u32>, Vec<u32>) = EDGES.into_iter().partition(|number| number % 2 == 1);
    let all_rows =
        |numbers: &[u32]| -> Vec<_> { numbers.iter().map(|&number| (number, vec![0, 1, 2])).collect() };
    let mut asked = Vec::new();
    let first = collected(marks, &mut scratch, |number| {
        asked.push(number);
        number % 2 == 1
    });
    assert_eq!(first, all_rows(&odd));
    assert_eq!(asked, EDGES);
    assert!(!marks.is_clean());
    assert!(odd.iter().all(|&number| marks.of(number).is_clean()));
    assert!(even.iter().all(|&number| !marks.of(number).is_clean()));
    assert_eq!(collected(marks, &mut scratch, |_| false), [], "nothing was wanted");
    assert_eq!(collected(marks, &mut scratch, |_| true), all_rows(&even));
    assert!(marks.is_clean());
}

#[test]
fn collects_one_number_alone() {
    let marks = marks_of(130, &EDGES);
    let mut scratch = Scratch::new(130);
    for &number in &EDGES {
        [0, 64, 129].into_iter().for_each(|row| marks.of(number).set(row));
    }
    for (index, &number) in EDGES.iter().enumerate() {
        let mut rows = Vec::new();
        assert!(marks.collect_one(&mut scratch, number, |of| rows = of.collect(), || ()));
        assert_eq!(rows, [0, 64, 129]);
        assert!(marks.of(number).is_clean());
        assert!(!marks.collect_one(&mut scratch, number, |_| panic!("{number} is not marked"), || ()));
        assert!(EDGES[index + 1..].iter().all(|&other| !marks.of(other).is_clean()));
    }
    assert!(!marks.is_clean(), "the rows are visited once more");
    assert_eq!(collected(marks, &mut scratch, |_| true), []);
    assert!(marks.is_clean());
}

#[test]
fn keeps_a_mark_made_by_a_callback_for_the_next_collection() {
    let marks = marks_of(2, &EDGES);
    let mut scratch = Scratch::new(2);
    marks.of(64).set(1);
    let mut handed = Vec::new();
    marks.collect(
        &mut scratch,
        |_| true,
        |number, rows| {
            handed.push((number, rows.collect::<Vec<_>>()));
            assert!(!marks.is_clean() && !marks.of(number).is_clean(), "a collection is under way");
            [0, 64].into_iter().for_each(|number| marks.of(number).set(0));
        },
        || (),
    );
    assert_eq!(handed, [(64, vec![1])]);
    assert_eq!(collected(marks, &mut scratch, |_| true), [(0, vec![0]), (64, vec![0])]);
}

#[test]
fn loses_nothing_when_a_callback_panics() {
    let marks = marks_of(70, &EDGES);
    let mut scratch = Scratch::new(70);
    let rows = vec![3, 69];
    let all: Vec<_> = EDGES.iter().map(|&number| (number, rows.clone())).collect();
    for at in 0..EDGES.len() {
        EDGES.iter().for_each(|&number| rows.iter().for_each(|&row| marks.of(number).set(row)));
        let mut handed = Vec::new();
        let text = panic_of(|| {
            marks.collect(
                &mut scratch,
                |_| true,
                |number, of| {
                    assert_ne!(number, EDGES[at], "a callback's own");
                    handed.push((number, of.collect::<Vec<_>>()));
                },
                || (),
            );
        });
        assert!(text.contains("a callback's own"), "{text}");
        assert_eq!(handed, all[..at], "marks handed out before the panic");
        assert_eq!(collected(marks, &mut scratch, |_| true), all[at..], "marks left for the next collection");
        assert!(marks.is_clean());

        EDGES.iter().for_each(|&number| rows.iter().for_each(|&row| marks.of(number).set(row)));
        let mut handed = Vec::new();
        panic_of(|| {
            marks.collect(
                &mut scratch,
                |number| {
                    assert_ne!(number, EDGES[at], "a question's own");
                    true
                },
                |number, of| handed.push((number, of.collect::<Vec<_>>())),
                || (),
            );
        });
        handed.extend(collected(marks, &mut scratch, |_| true));
        assert_eq!(handed, all, "each once, before the panic or after it");
        assert!(marks.is_clean());

        rows.iter().for_each(|&row| marks.of(EDGES[at]).set(row));
        panic_of(|| _ = marks.collect_one(&mut scratch, EDGES[at], |_| panic!("a callback's own"), || ()));
        assert_eq!(collected(marks, &mut scratch, |_| true), [all[at].clone()]);
    }
}

#[test]
fn panics_with_the_numbers_of_a_wrong_call() {
    let marks = marks_of(2, &[0]);
    let other = Box::leak(Box::new(Marks::new(2, 2 * CHUNK as u32)));
    let mut scratch = Scratch::new(2);
    let texts = [
        panic_of(|| _ = Marks::new(0, 1)),
        panic_of(|| _ = Marks::new(ROWS_MAX + 1, 1)),
        panic_of(|| _ = Marks::new(1, 0)),
        panic_of(|| _ = Marks::new(1, NUMBERS_MAX + 1)),
        panic_of(|| marks.provide(1)),
        panic_of(|| _ = other.of(CHUNK as u32)),
        panic_of(|| marks.of(0).set(2)),
        panic_of(|| marks.collect(&mut Scratch::new(1), |_| true, |_, _| (), || ())),
        panic_of(|| _ = other.collect_one(&mut scratch, CHUNK as u32 + 5, |_| (), || ())),
    ];
    assert_eq!(
        texts,
        [
            "marks have 1 to 8194 rows, not 0",
            "marks have 1 to 8194 rows, not 8195",
            "marks have 1 to 33554432 numbers, not 0",
            "marks have 1 to 33554432 numbers, not 33554433",
            "marks are of numbers below 1, not of 1",
            "number 4096 was not provided: call `provide` before",
            "marks have 2 rows, no row 2",
            "marks of 2 rows are collected with a scratch for 2, not for 1",
            "number 4101 was not provided: call `provide` before",
        ]
    );
    assert!(!marks.of(0).is_set(2), "there is no such row");
}

#[test]
fn refuses_a_second_collector_without_harm() {
    let marks = marks_of(2, &[0, 1]);
    let (mut scratch, mut of_second) = (Scratch::new(2), Scratch::new(2));
    [0, 1].into_iter().for_each(|number| marks.of(number).set(1));
    let mut handed = Vec::new();
    marks.collect(
        &mut scratch,
        |_| true,
        |number, _| {
            let text = panic_of(|| marks.collect(&mut of_second, |_| true, |_, _| (), || ()));
            assert_eq!(
                text,
                "marks are collected by one thread at a time, and another one is collecting these"
            );
            handed.push(number);
        },
        || (),
    );
    assert_eq!(handed, [0, 1]);
    assert!(marks.is_clean());
}

#[test]
fn the_same_word_of_two_rows_is_an_odd_number_of_lines_apart() {
    assert_eq!(size_of::<Leaves>(), 9 * 64);
    assert_eq!(align_of::<Leaves>(), 64);
}
