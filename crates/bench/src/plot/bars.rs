//! Horizontal bars: a row for each label, with a bar for each series.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use weft_commands::axis::{tick_text, ticks};

use super::axis::Axis;
use super::{COLOURS, FONT, GRID, INK, TEXT_SIZE, TITLE_SIZE, colour, failed};

/// A plot of bars.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    /// Label of the horizontal axis, with its unit.
    pub(crate) axis: String,
    pub(crate) scale: Scale,
    /// The names of the series, for the legend.
    pub(crate) series: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// Mapping of a value to the length of its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero.
    Linear,
    /// Logarithmic, starting at 1, for ratios: each doubling is one step.
    Ratio,
}

/// A row of bars.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) label: String,
    /// A bar for each series; `None` where it was not measured.
    pub(crate) bars: Vec<Option<Bar>>,
    /// The target value.
    pub(crate) target: Option<f64>,
}

/// A bar: its value, and the range over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    pub(crate) value: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

const WIDTH: u32 = 900;
const BAR_HEIGHT: u32 = 18;
const ROW_GAP: u32 = 12;
const LABELS_WIDTH: u32 = 240;
const LEGEND_LINE: u32 = 20;

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            // A ratio of zero would be infinitely far to the left.
            Self::Ratio => value.max(1e-6).log2(),
        }
    }

    /// Returns the ends of the axis and the positions of its ticks.
    fn axis(self, values: &[f64]) -> (std::ops::Range<f64>, Vec<f64>) {
        let maximum = values.iter().copied().fold(0.0, f64::max);
        match self {
            Self::Linear => {
                let (ticks, end) = ticks(maximum);
                (0.0..end * 1.08, ticks)
            }
            Self::Ratio => {
                let least = values.iter().copied().filter(|value| *value > 0.0).fold(1.0, f64::min);
                let (low, high) = (self.place(least).floor(), self.place(maximum.max(1.0)).ceil().max(1.0));
                let count = (high - low) as u32;
                ((low - 0.15)..(high + 0.45), (0..=count).map(|tick| low + f64::from(tick)).collect())
            }
        }
    }

    fn text(self, place: f64) -> String {
        match self {
            Self::Linear => tick_text(place),
            Self::Ratio => format!("{}×", tick_text(place.exp2())),
        }
    }
}

impl Bars {
    /// Draws the plot and returns it as SVG text.
    pub(crate) fn svg(&self) -> Result<String> {
        let bars = u32::try_from(self.series.len().max(1))?;
        let row_height = bars * BAR_HEIGHT + ROW_GAP;
        let legend_height = LEGEND_LINE * (u32::try_from(self.legend().len())? + 1);
        let height = u32::try_from(self.rows.len())? * row_height + 100 + legend_height;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE).map_err(failed)?;
            let (plot, legend) = root.split_vertically(height - legend_height);
            self.draw(&plot).map_err(failed)?;
            self.draw_legend(&legend).map_err(failed)?;
            root.present().map_err(failed)?;
        }
        Ok(svg)
    }

    fn values(&self) -> Vec<f64> {
        let bars = self.rows.iter().flat_map(|row| row.bars.iter().flatten());
        let targets = self.rows.iter().filter_map(|row| row.target);
        bars.flat_map(|bar| [bar.value, bar.lowest, bar.highest]).chain(targets).collect()
    }

    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let (range, ticks) = self.scale.axis(&self.values());
        let rows = self.rows.len();
        let text = (FONT, TEXT_SIZE).into_font().color(&INK);
        // The first row is at the top.
        let places: Vec<f64> = (0..rows).map(|row| row as f64).collect();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, TITLE_SIZE).into_font().color(&INK))
            .margin(12)
            .margin_right(20)
            .x_label_area_size(44)
            .y_label_area_size(LABELS_WIDTH)
            .build_cartesian_2d(
                Axis { range: range.clone(), ticks },
                Axis { range: rows as f64 - 0.5..-0.5, ticks: places },
            )?;
        let label =
            |place: &f64| self.rows.get(place.round() as usize).map_or("", |row| &row.label).to_owned();
        chart
            .configure_mesh()
            .disable_y_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_desc(&self.axis)
            .x_label_formatter(&|place| self.scale.text(*place))
            .y_label_formatter(&label)
            .label_style(text.clone())
            .axis_desc_style(text.clone())
            .draw()?;
        let series = self.series.len().max(1) as f64;
        let thickness =
            (1.0 - f64::from(ROW_GAP) / (series * f64::from(BAR_HEIGHT) + f64::from(ROW_GAP))) / series;
        let base = self.scale.place(if self.scale == Scale::Ratio { 1.0 } else { 0.0 });
        // Approximate width of a value's text on the axis: a target inside would cross the text.
        let room = (range.end - range.start) * 0.08;
        let behind = text.pos(Pos::new(HPos::Left, VPos::Center));
        for (place, row) in self.rows.iter().enumerate() {
            let top = place as f64 - thickness * series / 2.0;
            let target = row.target.map(|target| self.scale.place(target));
            for (number, bar) in row.bars.iter().enumerate() {
                let Some(bar) = bar else { continue };
                let (from, to) = (top + thickness * number as f64, top + thickness * (number + 1) as f64);
                let middle = f64::midpoint(from, to);
                let [value, lowest, highest] =
                    [bar.value, bar.lowest, bar.highest].map(|value| self.scale.place(value));
                chart.draw_series([Rectangle::new([(base, from), (value, to)], colour(number).filled())])?;
                chart.draw_series([PathElement::new(vec![(lowest, middle), (highest, middle)], INK)])?;
                let shown = format!("{:.2}{}", bar.value, if self.scale == Scale::Ratio { "×" } else { "" });
                let mut end = value.max(highest).max(base);
                if let Some(target) = target.filter(|target| (end..end + room).contains(target)) {
                    end = target;
                }
                let end = (end, middle);
                chart.draw_series([EmptyElement::at(end) + Text::new(shown, (5, 0), behind.clone())])?;
            }
            if let Some(target) = target {
                let line = vec![(target, top - 0.06), (target, top + thickness * series + 0.06)];
                chart.draw_series([PathElement::new(line, TARGET.stroke_width(3))])?;
            }
        }
        if self.scale == Scale::Ratio {
            chart.draw_series([PathElement::new(vec![(base, -0.5), (base, rows as f64 - 0.5)], INK)])?;
        }
        Ok(())
    }

    fn legend(&self) -> Vec<(String, RGBColor)> {
        let mut entries: Vec<_> =
            self.series.iter().enumerate().map(|(place, name)| (name.clone(), colour(place))).collect();
        if self.rows.iter().any(|row| row.target.is_some()) {
            entries.push(("target".to_owned(), TARGET));
        }
        entries
    }

    fn draw_legend<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let style = (FONT, TEXT_SIZE).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        let line = |place: usize| (LEGEND_LINE as usize * place) as i32 + 4;
        for (place, (name, colour)) in self.legend().into_iter().enumerate() {
            let top = line(place);
            let width = if colour == TARGET { 3 } else { 16 };
            let left = LABELS_WIDTH as i32 + 12 + (16 - width) / 2;
            area.draw(&Rectangle::new([(left, top), (left + width, top + 12)], colour.filled()))?;
            area.draw(&Text::new(name, (LABELS_WIDTH as i32 + 36, top + 6), style.clone()))?;
        }
        let spread = "thin line: from the lowest to the highest round; the bar is the median";
        area.draw(&Text::new(spread, (LABELS_WIDTH as i32 + 36, line(self.legend().len()) + 6), style))
    }
}

/// The colour of targets.
const TARGET: RGBColor = COLOURS[5];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_labels_values_and_legend_as_text() {
        let bar = |value| Some(Bar { value, lowest: value / 1.1, highest: value * 1.1 });
        let bars = Bars {
            title: "Title".to_owned(),
            axis: "times as fast".to_owned(),
            scale: Scale::Ratio,
            series: vec!["beside go".to_owned(), "beside other".to_owned()],
            rows: vec![
                Row { label: "TCP".to_owned(), bars: vec![bar(2.25), None], target: Some(1.7) },
                Row { label: "UDP".to_owned(), bars: vec![bar(0.5), bar(6.0)], target: None },
            ],
        };
        let svg = bars.svg().unwrap();
        for text in ["Title", "times as fast", "TCP", "UDP", "2.25×", "0.50×", "beside other", "target", "8×"]
        {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn a_ratio_of_nothing_and_no_rows_are_drawn_all_the_same() {
        let zero = Bar { value: 0.0, lowest: 0.0, highest: 0.0 };
        let row = Row { label: String::new(), bars: vec![Some(zero)], target: None };
        for (scale, rows) in
            [(Scale::Ratio, vec![row.clone()]), (Scale::Linear, vec![row]), (Scale::Linear, vec![])]
        {
            let (title, axis) = (String::new(), String::new());
            assert!(Bars { title, axis, scale, series: vec!["a".to_owned()], rows }.svg().is_ok());
        }
    }
}
