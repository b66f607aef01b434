//! The text format of Prometheus before OpenMetrics, which every tool reads.

/// Converts OpenMetrics to the older format: OpenMetrics names a family of counters without the suffix of its
/// samples, the older format names it with the suffix.
pub(super) fn from_openmetrics(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            classic.push_str(line);
            classic.push('\n');
            continue;
        };
        match comment.split_once(' ') {
            // The type, which decides the suffix, follows in the next line.
            Some(("HELP", rest)) => help = rest.split_once(' '),
            Some(("TYPE", rest)) => {
                let Some((name, kind)) = rest.split_once(' ') else { continue };
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    _ => ("", kind),
                };
                if let Some((_, help)) = help.take() {
                    classic.push_str(&format!("# HELP {name}{suffix} {help}\n"));
                }
                classic.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            // `# UNIT` and `# EOF` are dropped.
            _ => {}
        }
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_as_their_samples() {
        let open = "# HELP a Help of a.\n# TYPE a counter\na_total{x=\"# TYPE a counter\"} 1\n\
                    # HELP b Help.\n# TYPE b info\n# UNIT b bytes\nb_info 1\n\
                    # TYPE c gauge\nc 2\n# EOF\n";
        let classic = "# HELP a_total Help of a.\n# TYPE a_total counter\na_total{x=\"# TYPE a counter\"} 1\n\
                       # HELP b_info Help.\n# TYPE b_info gauge\nb_info 1\n\
                       # TYPE c gauge\nc 2\n";
        assert_eq!(from_openmetrics(open), classic);
    }
}
