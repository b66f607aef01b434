//! Numbers for sockets: a slot is used again with another generation, so that a number of a socket that is
//! gone finds nothing.

/// Values with numbers.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Returns the slot and the generation of the value.
    pub(crate) fn insert(&mut self, value: T) -> (u32, u32) {
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            entry.1 = Some(value);
            return (index, entry.0);
        }
        self.entries.push((0, Some(value)));
        (self.entries.len() as u32 - 1, 0)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.1.take()?;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.1.as_mut()
    }

    /// Reports whether the value in the slot has this generation.
    pub(crate) fn has(&self, index: u32, generation: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.0 == generation && entry.1.is_some())
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| Some((index, entry.1.as_ref()?)))
    }

    pub(crate) fn indices(&self) -> Vec<u32> {
        self.iter().map(|(index, _)| index).collect()
    }
}
