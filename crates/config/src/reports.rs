//! What is wrong with a file, as far as it was read: errors, warnings, and key files that may still come.

use std::collections::HashMap;
use std::mem::{self, Discriminant};
use std::path::Path;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::key_file::{self, FileKey};
use super::problem::{ConfigError, ConfigErrors, Location, Notice, Problem, Warning};

/// Collects errors and warnings.
pub(super) struct Reports {
    pub(super) file: Arc<Path>,
    /// Set if the file has another format: the other errors follow from that.
    pub(super) foreign: Option<ConfigError>,
    errors: Vec<ConfigError>,
    more: usize,
    warnings: Vec<Warning>,
    /// The number of warnings of each kind.
    kinds: HashMap<Discriminant<Notice>, usize>,
    /// Key files that cannot be used, which PreUp may write.
    unusable_key_files: Vec<ConfigError>,
}

impl Reports {
    /// Limits the errors that are kept: a file that is not a configuration must not fill the memory.
    const MAX_ERRORS: usize = 100;
    /// Limits the warnings of a kind that are kept, for a person as well.
    const MAX_OF_A_KIND: usize = 20;

    pub(super) fn new(file: Arc<Path>) -> Self {
        Self {
            file,
            foreign: None,
            errors: Vec::new(),
            more: 0,
            warnings: Vec::new(),
            kinds: HashMap::new(),
            unusable_key_files: Vec::new(),
        }
    }

    fn at(&self, line: usize, key: Option<&str>) -> Location {
        Location { file: self.file.clone(), line, key: key.map(str::to_owned) }
    }

    pub(super) fn error(&mut self, line: usize, key: Option<&str>, problem: Problem) {
        if self.errors.len() < Self::MAX_ERRORS {
            let at = self.at(line, key);
            self.errors.push(ConfigError { at, problem });
        } else {
            self.more += 1;
        }
    }

    /// Reports whether further errors are only counted: what else is read is of no use.
    pub(super) fn is_hopeless(&self) -> bool {
        self.more > 0
    }

    pub(super) fn warning(&mut self, line: usize, key: &str, notice: Notice) {
        let count = self.kinds.entry(mem::discriminant(&notice)).or_default();
        *count += 1;
        if *count <= Self::MAX_OF_A_KIND {
            let at = self.at(line, Some(key));
            self.warnings.push(Warning { at, notice });
        }
    }

    /// Returns the warnings in the order of their lines. Behind the last of a kind stands how many more of it
    /// there are.
    fn sorted_warnings(&mut self) -> Vec<Warning> {
        let mut warnings = mem::take(&mut self.warnings);
        for (kind, count) in &self.kinds {
            let is_one = |warning: &Warning| mem::discriminant(&warning.notice) == *kind;
            let last = warnings.iter().rposition(is_one).filter(|_| *count > Self::MAX_OF_A_KIND);
            if let Some(last) = last {
                let notice = Notice::More { count: count - Self::MAX_OF_A_KIND };
                warnings.insert(last + 1, Warning { at: warnings[last].at.clone(), notice });
            }
        }
        warnings.sort_by_key(|warning| warning.at.line);
        warnings
    }

    /// Reads a secret key, which is `text`, or stands in a file of this path.
    pub(super) fn secret<T>(
        &mut self,
        text: &str,
        in_file: bool,
        line: usize,
        key: &str,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        if !in_file {
            let mut compact = Zeroizing::new(String::with_capacity(text.len()));
            compact.extend(text.split_whitespace());
            return self.ok(line, key, read(&compact));
        }
        let value = match key_file::read(text, &self.file) {
            // No command mends these.
            Err(
                problem @ (Problem::Empty { .. } | Problem::KeyInPlaceOfFile | Problem::KeyFileDenied { .. }),
            ) => {
                self.error(line, Some(key), problem);
                return None;
            }
            Err(problem) => Err(problem),
            Ok(FileKey { text, readable }) => {
                if let Some(mode) = readable {
                    self.warning(line, key, Notice::ReadableKey { mode });
                }
                read(&text)
            }
        };
        let at = self.at(line, Some(key));
        value.map_err(|problem| self.unusable_key_files.push(ConfigError { at, problem })).ok()
    }

    /// Settles what becomes of key files that cannot be used: if PreUp is to write them they are only warned
    /// of, and returned.
    pub(super) fn settle_key_files(&mut self, are_to_come: bool) -> Vec<Location> {
        let unusable = mem::take(&mut self.unusable_key_files);
        if !are_to_come {
            for ConfigError { at, problem } in unusable {
                self.error(at.line, at.key.as_deref(), problem);
            }
            return Vec::new();
        }
        let to_come = unusable.into_iter().map(|ConfigError { at, problem }| {
            self.warnings.push(Warning { at: at.clone(), notice: Notice::KeyFileToCome { problem } });
            at
        });
        to_come.collect()
    }

    pub(super) fn ok<T>(&mut self, line: usize, key: &str, value: Result<T, Problem>) -> Option<T> {
        value.map_err(|problem| self.error(line, Some(key), problem)).ok()
    }

    /// Returns what was read and the warnings about it, if there is no error.
    pub(super) fn conclude<T>(mut self, read: Option<T>) -> Result<(T, Vec<Warning>), ConfigErrors> {
        if let Some(error) = self.foreign {
            return Err(ConfigErrors { errors: vec![error], more: 0, warnings: Vec::new() });
        }
        self.errors.sort_by_key(|error| error.at.line);
        let warnings = self.sorted_warnings();
        match read {
            Some(read) if self.errors.is_empty() => Ok((read, warnings)),
            _ => Err(ConfigErrors { errors: self.errors, more: self.more, warnings }),
        }
    }
}
