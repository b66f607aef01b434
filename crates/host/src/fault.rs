//! The process in a simulation of a system: one of its calls fails, or is the last.

use std::cell::{Cell, RefCell};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call does nothing and fails.
    Refuses,
    /// The call does its work and fails.
    IsUnheard,
    /// The process is killed before the call.
    IsKilledBefore,
    /// The process is killed after the call has done its work.
    IsKilledAfter,
}

#[derive(Debug)]
pub(crate) struct Process<C> {
    /// The number of the call with the fault, from 0.
    fault: Cell<Option<(usize, Fault)>>,
    calls: RefCell<Vec<C>>,
    is_killed: Cell<bool>,
}

impl<C> Default for Process<C> {
    fn default() -> Self {
        Self { fault: Cell::default(), calls: RefCell::default(), is_killed: Cell::default() }
    }
}

impl<C: Clone> Process<C> {
    /// Starts a new process.
    pub(crate) fn start(&self, fault: Option<(usize, Fault)>) {
        self.fault.set(fault);
        self.calls.take();
        self.is_killed.set(false);
    }

    pub(crate) fn calls(&self) -> Vec<C> {
        self.calls.borrow().clone()
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.is_killed.get()
    }

    /// Makes a call. Without a fault returns what `work` returns, else the error of `failed`.
    pub(crate) fn call<T, E>(
        &self,
        call: C,
        failed: impl FnOnce(Fault) -> E,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_killed() {
            return Err(failed(Fault::IsKilledBefore));
        }
        let number = self.calls.borrow().len();
        self.calls.borrow_mut().push(call);
        let fault = self.fault.get().filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        self.is_killed.set(matches!(fault, Some(Fault::IsKilledBefore | Fault::IsKilledAfter)));
        match fault {
            None => work(),
            Some(fault @ (Fault::Refuses | Fault::IsKilledBefore)) => Err(failed(fault)),
            Some(fault @ (Fault::IsUnheard | Fault::IsKilledAfter)) => {
                let _unheard = work();
                Err(failed(fault))
            }
        }
    }
}
