//! Throughput over time as a picture (SVG), with the events of the cluster marked.

use std::fmt::Write;

use super::demo::Sample;
use super::failure::Mark;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 130.0;
/// Lines of the vertical axis.
const GRID: u32 = 5;

/// Transactions a second in each span of `bin` seconds: a sample counts for the spans that it covers, in proportion.
pub fn rates(samples: &[Sample], bin: f64, seconds: f64) -> Vec<f64> {
    let bins = (seconds / bin).ceil().max(1.0) as usize;
    let mut commits = vec![0.0; bins];
    for sample in samples.iter().filter(|sample| sample.seconds > 0.0) {
        let (from, to) = ((sample.at - sample.seconds).max(0.0), sample.at);
        for (number, sum) in commits.iter_mut().enumerate() {
            let (start, end) = (number as f64 * bin, (number + 1) as f64 * bin);
            let covered = (to.min(end) - from.max(start)).max(0.0);
            *sum += sample.commits as f64 * covered / sample.seconds;
        }
    }
    commits.iter().map(|commits| commits / bin).collect()
}

/// The picture.
pub fn svg(title: &str, rates: &[f64], bin: f64, marks: &[Mark]) -> String {
    let seconds = rates.len() as f64 * bin;
    let most = round_up(rates.iter().copied().fold(1.0, f64::max));
    let x = |at: f64| LEFT + (WIDTH - LEFT - RIGHT) * (at / seconds).clamp(0.0, 1.0);
    let y = |rate: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / most;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"14\">{}</text>",
        escape(title)
    );
    for line in 0..=GRID {
        let rate = most * f64::from(line) / f64::from(GRID);
        let (at, end) = (y(rate), WIDTH - RIGHT);
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let every = (seconds / 10.0).ceil().max(1.0);
    let mut at = 0.0;
    while at <= seconds {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at:.0} s</text>",
            x(at),
            HEIGHT - BOTTOM + 18.0
        );
        at += every;
    }
    let points: Vec<String> = (rates.iter().enumerate())
        .map(|(number, rate)| format!("{:.1},{:.1}", x((number as f64 + 0.5) * bin), y(*rate)))
        .collect();
    let _ = write!(
        out,
        "<polyline fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.5\" points=\"{}\"/>",
        points.join(" ")
    );
    for (number, mark) in marks.iter().enumerate() {
        let (at, below) = (x(mark.at), HEIGHT - BOTTOM + 38.0 + 15.0 * number as f64);
        // A text that would leave the picture ends at its line instead.
        let (anchor, beside) = if at > WIDTH * 0.6 { ("end", at - 4.0) } else { ("start", at + 4.0) };
        let _ = write!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{below:.1}\" stroke=\"#d1242f\" \
             stroke-dasharray=\"4 3\"/><text x=\"{beside:.1}\" y=\"{below:.1}\" text-anchor=\"{anchor}\" \
             fill=\"#d1242f\">{:.3} s: {}</text>",
            mark.at,
            escape(&mark.what)
        );
    }
    let _ = write!(
        out,
        "<text transform=\"rotate(-90)\" x=\"{:.1}\" y=\"14\" text-anchor=\"middle\">transactions a second</text></svg>",
        -(HEIGHT - BOTTOM) / 2.0
    );
    out.push('\n');
    out
}

/// The next number that an axis may end with.
fn round_up(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * unit).find(|end| *end >= value).unwrap_or(value)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_counts_where_it_was_taken() {
        let sample = |at, seconds, commits| Sample { at, seconds, commits };
        // Two nodes; the second stops in the middle.
        let samples = [sample(1.0, 1.0, 100), sample(2.0, 1.0, 100), sample(1.5, 1.5, 150)];
        assert_eq!(rates(&samples, 1.0, 2.0), [200.0, 150.0]);
    }

    #[test]
    fn the_picture_shows_what_happened() {
        let marks = [Mark { at: 1.5, what: "node 2 <killed>".to_owned() }];
        let picture = svg("TPC-C", &[10.0, 20.0], 1.0, &marks);
        assert!(picture.contains("1.500 s: node 2 &lt;killed&gt;") && picture.ends_with("</svg>\n"), "{picture}");
        assert_eq!((round_up(19.0), round_up(21.0), round_up(100.0)), (20.0, 50.0, 100.0));
    }
}
