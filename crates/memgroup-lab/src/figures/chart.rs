//! The charts of the page: horizontal bars, as SVG.

use super::{Figure, Figures};

/// A chart of an experiment: its title, and what its figures' ids begin with and contain.
const CHARTS: [(&str, &str, [&str; 2]); 4] = [
    ("charge", "A charge of 4 KiB and its uncharge, three levels", ["charge.pair.", ""]),
    ("drain", "One drain of 128 stocks of a group", ["drain.whole-drain.", ".slots-128"]),
    ("rstat", "A fresh read beside other statistics that change", ["rstat.read.", ""]),
    ("limits", "Away from the best case, over the control", ["limits.a", "-over-"]),
];

/// The charts that have figures: the experiment's name, and the text of the file.
pub(super) fn charts(all: &Figures) -> Vec<(&'static str, String)> {
    let chart = |&(name, title, [begin, part]): &(&'static str, &str, [&str; 2])| {
        let of_kind = |figure: &&Figure| figure.id.starts_with(begin) && figure.id.contains(part);
        let bars = all.figures.iter().filter(of_kind);
        let bars: Vec<_> =
            bars.filter_map(|figure| Some((figure, figure.value.filter(|it| *it > 0.0)?))).collect();
        (!bars.is_empty()).then(|| (name, svg(title, &bars)))
    };
    CHARTS.iter().filter_map(chart).collect()
}

/// Bars on a logarithmic scale, because the longest are a hundred times as long as the shortest.
fn svg(title: &str, bars: &[(&Figure, f64)]) -> String {
    const LEFT: f64 = 520.0;
    const LONGEST: f64 = 270.0;
    let decades = || bars.iter().map(|(_, value)| value.log10());
    let least = decades().fold(f64::INFINITY, f64::min).floor();
    let span = (decades().fold(f64::NEG_INFINITY, f64::max).ceil() - least).max(1.0);
    let bottom = 62 + 25 * bars.len();
    let mut text = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="system-ui, sans-serif" font-size="13">
<rect width="900" height="{height}" rx="8" fill="#ffffff"/>
<text x="20" y="30" font-size="16" font-weight="600" fill="#1a202c">{title}</text>
<text x="20" y="48" font-size="11" fill="#718096">blue: memgroup; grey: controls; each line is ten times the one before</text>
"##,
        height = bottom + 16,
    );
    for decade in 0..=span as u32 {
        let x = LEFT + f64::from(decade) / span * LONGEST;
        text +=
            &format!("<line x1=\"{x:.0}\" y1=\"62\" x2=\"{x:.0}\" y2=\"{bottom}\" stroke=\"#e2e8f0\"/>\n");
    }
    for (row, (figure, value)) in bars.iter().enumerate() {
        // A row's name begins with its metric, which the title says. That of a goal has none.
        let name = match figure.what.split_once(", ") {
            Some((_, name)) if figure.goal.is_none() => name,
            _ => &figure.what,
        };
        let is_ours = figure.goal.is_some() || ["memgroup", "separate"].iter().any(|it| name.starts_with(it));
        let colour = if is_ours { "#2b6cb0" } else { "#a0aec0" };
        let (y, length) = (62 + 25 * row, ((value.log10() - least) / span * LONGEST).max(2.0));
        let name = name.replace(" (control)", "").replace('&', "&amp;").replace('<', "&lt;");
        text += &format!(
            r##"<text x="{}" y="{}" text-anchor="end" fill="#2d3748">{name}</text>
<rect x="{LEFT}" y="{}" width="{length:.1}" height="15" rx="2" fill="{colour}"/>
<text x="{:.1}" y="{}" fill="#1a202c">{}</text>
"##,
            LEFT - 10.0,
            y + 16,
            y + 4,
            LEFT + length + 8.0,
            y + 16,
            figure.text,
        );
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::all;
    use super::*;

    #[test]
    fn draws_a_bar_for_each_figure_and_grey_ones_for_controls() {
        let charts = charts(&all());
        let [("charge", svg)] = &charts[..] else { panic!("{charts:?}") };
        // 7.5 and 750 ns on a scale from 1 to 1,000.
        for bar in [
            r##"width="78.8" height="15" rx="2" fill="#2b6cb0""##,
            r##"width="258.8" height="15" rx="2" fill="#a0aec0""##,
        ] {
            assert!(svg.contains(bar), "no {bar} in:\n{svg}");
        }
        assert!(svg.contains(">memgroup, 1-thread<") && svg.contains(">750 ns<"), "{svg}");
    }
}
