//! Lines over an axis of discrete settings, in panels above each other.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use weft_commands::axis::{tick_text, ticks};

use super::axis::Axis;
use super::{FONT, GRID, INK, TEXT_SIZE, TITLE_SIZE, colour, failed};

/// A plot of lines.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(crate) title: String,
    /// Label of the horizontal axis.
    pub(crate) axis: String,
    /// Labels of the settings, evenly spaced.
    pub(crate) settings: Vec<String>,
    /// The names of the lines, for the legend.
    pub(crate) names: Vec<String>,
    pub(crate) panels: Vec<Panel>,
    /// Lines of text below the legend.
    pub(crate) notes: Vec<String>,
}

/// One figure of all lines.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// Label of the vertical axis, with its unit.
    pub(crate) axis: String,
    /// In the order of the names.
    pub(crate) lines: Vec<Line>,
}

/// A line: a value for each setting, `None` where it was not measured.
pub(crate) type Line = Vec<Option<f64>>;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 260;
const TITLE_HEIGHT: u32 = 40;
const LEGEND_WIDTH: u32 = 190;
const LEGEND_LINE: i32 = 22;

impl Lines {
    /// Draws the plot and returns it as SVG text.
    pub(crate) fn svg(&self) -> Result<String> {
        let height = TITLE_HEIGHT + PANEL_HEIGHT * u32::try_from(self.panels.len().max(1))?;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE).map_err(failed)?;
            let root =
                root.titled(&self.title, (FONT, TITLE_SIZE).into_font().color(&INK)).map_err(failed)?;
            let (plots, legend) = root.split_horizontally(WIDTH - LEGEND_WIDTH);
            let areas = plots.split_evenly((self.panels.len().max(1), 1));
            for (area, panel) in areas.iter().zip(&self.panels) {
                self.draw(area, panel).map_err(failed)?;
            }
            self.draw_legend(&legend).map_err(failed)?;
            root.present().map_err(failed)?;
        }
        Ok(svg)
    }

    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, plotters::coord::Shift>,
        panel: &Panel,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let maximum = panel.lines.iter().flatten().flatten().copied().fold(0.0, f64::max);
        let (ticks, end) = ticks(maximum);
        let places: Vec<f64> = (0..self.settings.len()).map(|place| place as f64).collect();
        let text = (FONT, TEXT_SIZE).into_font().color(&INK);
        let last = self.settings.len().max(1) as f64 - 1.0;
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(
                Axis { range: -0.25..last + 0.25, ticks: places },
                Axis { range: 0.0..end * 1.04, ticks },
            )?;
        let setting = |place: &f64| self.settings.get(place.round() as usize).cloned().unwrap_or_default();
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_desc(&self.axis)
            .y_desc(&panel.axis)
            .x_label_formatter(&setting)
            .y_label_formatter(&|value| tick_text(*value))
            .label_style(text.clone())
            .axis_desc_style(text)
            .draw()?;
        for (place, line) in panel.lines.iter().enumerate() {
            let points: Vec<(f64, f64)> = line
                .iter()
                .enumerate()
                .filter_map(|(setting, value)| Some((setting as f64, (*value)?)))
                .collect();
            chart.draw_series(LineSeries::new(points.iter().copied(), colour(place).stroke_width(2)))?;
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour(place).filled())))?;
        }
        Ok(())
    }

    fn draw_legend<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let style = (FONT, TEXT_SIZE).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        let mut middle = 20;
        for (place, name) in self.names.iter().enumerate() {
            area.draw(&PathElement::new(vec![(4, middle), (28, middle)], colour(place).stroke_width(2)))?;
            area.draw(&Circle::new((16, middle), 4, colour(place).filled()))?;
            area.draw(&Text::new(name.as_str(), (36, middle), style.clone()))?;
            middle += LEGEND_LINE;
        }
        for note in &self.notes {
            middle += LEGEND_LINE;
            area.draw(&Text::new(note.as_str(), (4, middle), style.clone()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_axes_settings_and_legend_as_text() {
        let lines = Lines {
            title: "Title".to_owned(),
            axis: "threads".to_owned(),
            settings: vec!["0".to_owned(), "auto".to_owned()],
            names: vec!["MTU 1420".to_owned()],
            panels: vec![Panel { axis: "Gbit/s".to_owned(), lines: vec![vec![Some(6.0), None]] }],
            notes: vec!["no loss".to_owned()],
        };
        let svg = lines.svg().unwrap();
        for text in ["Title", "threads", "auto", "MTU 1420", "Gbit/s", "no loss"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(Lines { settings: Vec::new(), panels: Vec::new(), ..lines }.svg().is_ok());
    }
}
