//! Draws `docs/charge.svg`: the tree of groups with its limits, and the life of a charge.
//!
//! ```text
//! cargo run -p memgroup --example picture
//! ```
//!
//! Writes the picture for README and the guide, and `src/guide/picture.md`, which hands it to
//! rustdoc as a link.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const STYLE: &str = "\
.page{fill:#ffffff}.box{fill:#f3f5f8;stroke:#8c959f}.part{fill:#ffffff;stroke:#8c959f}.good{fill:#dcf3e2;stroke:#2c974b}\
.bad{fill:#fde3e1;stroke:#cf222e}.used{fill:#0969da}.free{fill:#d0d7de}.line{stroke:#57606a;fill:none;stroke-width:1.5}\
.tip{fill:#57606a}text{fill:#1f2328;font:14px ui-sans-serif,system-ui,sans-serif}.dim{fill:#57606a;font-size:12.5px}\
.head{font-weight:600;font-size:16px}.name{font-weight:600}.mid{text-anchor:middle}\
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.box{fill:#1c232c;stroke:#6e7681}.part{fill:#0d1117;stroke:#6e7681}\
.good{fill:#12331d;stroke:#3fb950}.bad{fill:#411a1c;stroke:#f85149}.used{fill:#4493f8}.free{fill:#3d444d}\
.line{stroke:#9198a1}.tip{fill:#9198a1}text{fill:#e6edf3}.dim{fill:#9198a1}}";

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 640;

struct Picture(String);

impl Picture {
    fn new() -> Picture {
        let mut picture = Picture(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"The tree of groups with its limits, and the life of a charge\">\n<style>{STYLE}</style>\n"
        ));
        picture.rect("page", [0, 0, WIDTH, HEIGHT], 0);
        picture
    }

    fn rect(&mut self, class: &str, [x, y, width, height]: [u32; 4], radius: u32) {
        let _ = writeln!(
            self.0,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{radius}\"/>"
        );
    }

    fn text(&mut self, class: &str, x: u32, y: u32, text: &str) {
        let _ = writeln!(self.0, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }

    /// A line through `points`, with a tip at its end.
    fn arrow(&mut self, points: &[(u32, u32)]) {
        let list: Vec<_> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let _ = writeln!(self.0, "<polyline class=\"line\" points=\"{}\"/>", list.join(" "));
        let [.., (from_x, from_y), (x, y)] = points else { return };
        let angle =
            (f64::from(*y) - f64::from(*from_y)).atan2(f64::from(*x) - f64::from(*from_x)).to_degrees();
        let _ = writeln!(
            self.0,
            "<path class=\"tip\" d=\"M0 0L-9 -4.5L-9 4.5Z\" transform=\"translate({x} {y}) rotate({angle:.0})\"/>"
        );
    }

    /// A group: its name, its limits, and a bar of its usage in percent of its own limit.
    fn group(&mut self, [x, y, width]: [u32; 3], name: &str, limits: &str, percent: Option<u32>) {
        self.rect("box", [x, y, width, 58], 6);
        self.text("name", x + 12, y + 22, name);
        self.text("dim", x + 12, y + 40, limits);
        if let Some(percent) = percent {
            self.rect("free", [x + 12, y + 47, width - 24, 5], 2);
            self.rect("used", [x + 12, y + 47, (width - 24) * percent / 100, 5], 2);
        }
    }

    /// A step of a charge, with its number.
    fn step(&mut self, class: &str, y: u32, title: &str, detail: &str) {
        self.rect(class, [STEPS, y, STEP_WIDTH, 46], 6);
        self.text("name", STEPS + 12, y + 20, title);
        self.text("dim", STEPS + 12, y + 38, detail);
    }
}

const STEPS: u32 = 530;
const STEP_WIDTH: u32 = 330;
/// Where the line of all charges that succeed is.
const MADE: u32 = 905;

fn tree(picture: &mut Picture) {
    picture.text("head", 30, 38, "The tree: a limit holds for all groups below it");
    picture.group([190, 62, 150], "/", "the process", None);
    picture.group([165, 172, 200], "/tenants", "max 1 GiB", Some(78));
    picture.group([30, 292, 140], "alice", "max 64 MiB", Some(55));
    picture.group([190, 292, 140], "bob", "high 200 MiB", Some(90));
    picture.group([350, 292, 140], "etl", "min 32 MiB", Some(30));
    picture.arrow(&[(265, 172), (265, 121)]);
    picture.arrow(&[(100, 292), (100, 262), (230, 262), (230, 231)]);
    picture.arrow(&[(260, 292), (260, 231)]);
    picture.arrow(&[(420, 292), (420, 262), (290, 262), (290, 231)]);
    picture.text("dim", 278, 150, "one batch, counted at every level");

    for (slot, percent) in [(0, 70), (1, 25), (2, 0), (3, 45)] {
        let x = 30 + slot * 117;
        picture.rect("part", [x, 394, 109, 46], 6);
        picture.text("dim", x + 12, 413, &format!("slot {slot}"));
        picture.rect("free", [x + 12, 422, 85, 6], 2);
        if percent > 0 {
            picture.rect("used", [x + 12, 422, 85 * percent / 100, 6], 2);
        }
    }
    picture.arrow(&[(84, 394), (84, 351)]);
    picture.text("dim", 96, 378, "a full stock returns a batch; a drain takes all");
    picture.text("name", 30, 462, "alice's stock: prepaid bytes, one word for each CPU slot");

    let lines = [
        ("max", "refuses charges that would exceed it"),
        ("high", "slows down a group above it, refuses nothing"),
        ("min, low", "keep a group's caches from being reclaimed for others"),
        ("shrinker", "a cache that frees memory for a group that is full"),
        ("kill hook", "tells a group's work to stop and free its memory"),
    ];
    for (at, (word, meaning)) in (0..).zip(lines) {
        let y = 506 + at * 26;
        picture.text("name", 30, y, word);
        picture.text("dim", 112, y, meaning);
    }
}

fn charge(picture: &mut Picture) {
    picture.text("head", STEPS, 38, "The life of a charge: try_charge(4096)");
    let ladder = [
        ("box", "stock", "one atomic addition, nearly always enough"),
        ("box", "counters", "buy a batch, or exactly 4096, at every level"),
        ("part", "drain", "stocks of all slots below go back to the counter"),
        ("part", "reclaim", "caches below free the missing bytes"),
        ("part", "kill", "one group below is told to stop"),
        ("part", "freeze", "one try with all stocks below kept empty"),
        ("part", "wait", "with a deadline: until other threads free memory"),
    ];
    picture.rect("box", [STEPS - 12, 202, STEP_WIDTH + 24, 336], 8);
    picture.text("dim", STEPS, 222, "a group is full; each step tries the charge again");
    for (at, (class, title, detail)) in (0..).zip(ladder) {
        let y = if at < 2 { 62 + at * 66 } else { 232 + (at - 2) * 61 };
        picture.step(class, y, title, detail);
        let below = match at {
            0 => 128,
            1 => 202,
            6 => 560,
            _ => y + 61,
        };
        picture.arrow(&[(STEPS + 40, y + 46), (STEPS + 40, below)]);
        picture.arrow(&[(STEPS + STEP_WIDTH, y + 23), (MADE, y + 23)]);
    }
    picture.rect("good", [MADE, 62, 66, 460], 6);
    picture.text("name mid", MADE + 33, 287, "made:");
    picture.text("dim mid", MADE + 33, 307, "counted");
    picture.text("dim mid", MADE + 33, 324, "until");
    picture.text("dim mid", MADE + 33, 341, "dropped");
    picture.rect("bad", [STEPS, 560, STEP_WIDTH, 46], 6);
    picture.text("name", STEPS + 12, 580, "refused");
    picture.text("dim", STEPS + 12, 598, "the error names the full group and its limit");
}

fn draw() -> String {
    let mut picture = Picture::new();
    tree(&mut picture);
    charge(&mut picture);
    picture.0 + "</svg>\n"
}

/// The picture as the definition of a link, for rustdoc, which copies no files.
fn link(svg: &str) -> String {
    let mut link = "[picture]: data:image/svg+xml,".to_owned();
    for byte in svg.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'/' | b':' | b'=' | b',' | b';' => {
                link.push(byte.into());
            }
            _ => _ = write!(link, "%{byte:02X}"),
        }
    }
    link + "\n\n"
}

fn main() -> std::io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let svg = draw();
    fs::write(here.join("src/guide/picture.md"), link(&svg))?;
    fs::write(here.join("docs/charge.svg"), svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_picture_is_the_drawn_one() {
        assert_eq!(include_str!("../docs/charge.svg"), draw());
        assert_eq!(include_str!("../src/guide/picture.md"), link(&draw()));
    }
}
