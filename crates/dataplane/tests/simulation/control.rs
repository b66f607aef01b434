//! The control thread of a daemon with several packet threads, which waits for answers of the event loops. It
//! and the thread of the world take turns, so that the world stays a function of its seed.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::mpsc as async_mpsc;
use weft_control::Handle;
use weft_dataplane::{Command, Snapshot};

use crate::chance::Chance;
use crate::system;

/// The clock of a control thread stands still at a time that the machine never reaches: its waits end when
/// there is an answer, and the event loops decide how long that takes.
const FAR: Duration = Duration::from_secs(1 << 30);

/// A call of the control thread, and what it returns.
type Call = Box<dyn FnOnce(&Handle) -> Option<Box<Snapshot>> + Send>;
/// An answer that is under way: passes it on and returns true once it is there.
type Awaited = Box<dyn FnMut() -> bool>;

enum State {
    Idle,
    /// The control thread works; it asks all event loops or finishes its call.
    Works,
    /// It waits for answers to these commands, of which some have not come to their packet threads yet.
    Waits {
        commands: VecDeque<(usize, Command)>,
        awaited: Vec<Awaited>,
    },
}

pub(crate) struct ControlThread {
    calls: mpsc::Sender<Call>,
    done: async_mpsc::UnboundedReceiver<Option<Box<Snapshot>>>,
    /// What it asks of the event loops, in order.
    queues: Vec<async_mpsc::Receiver<Command>>,
    waiting: VecDeque<Call>,
    state: State,
    /// What the call returned, until its questions are taken.
    finished: Option<Option<Box<Snapshot>>>,
}

/// What the control thread did.
enum Did {
    Finish(Option<Box<Snapshot>>),
    /// It has asked every event loop.
    Ask(Vec<Command>),
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl ControlThread {
    /// Starts the control thread of these event loops, by the queues of their commands.
    pub(crate) fn start(seed: u64, handle: Handle, queues: Vec<async_mpsc::Receiver<Command>>) -> Self {
        let (calls, called) = mpsc::channel::<Call>();
        let (finish, done) = async_mpsc::unbounded_channel();
        // It ends when there are no more calls.
        std::thread::spawn(move || {
            system::begin(seed, FAR);
            for call in called {
                let _ = finish.send(call(&handle));
            }
        });
        Self { calls, done, queues, waiting: VecDeque::new(), state: State::Idle, finished: None }
    }

    pub(crate) fn call(&mut self, call: impl FnOnce(&Handle) -> Option<Box<Snapshot>> + Send + 'static) {
        self.waiting.push_back(Box::new(call));
    }

    /// Goes on until the event loops have to take turns, which get commands `through` these, in any order.
    /// Returns the newest snapshot that there is.
    pub(crate) fn advance(
        &mut self,
        through: &[async_mpsc::Sender<Command>],
        chance: &mut Chance,
    ) -> Option<Box<Snapshot>> {
        let mut newest = None;
        loop {
            match &mut self.state {
                State::Idle => {
                    let Some(call) = self.waiting.pop_front() else { return newest };
                    self.calls.send(call).expect("a control thread that runs");
                    self.state = State::Works;
                }
                State::Works => match self.wait() {
                    Did::Finish(snapshot) => {
                        newest = snapshot.or(newest);
                        self.state = State::Idle;
                    }
                    Did::Ask(mut asked) => {
                        let awaited = asked.iter_mut().filter_map(relay).collect();
                        let commands = asked.into_iter().enumerate().collect();
                        self.state = State::Waits { commands, awaited };
                    }
                },
                State::Waits { commands, awaited } => {
                    // One after the other, and turns in between.
                    if chance.happens(50) {
                        commands.rotate_left(usize::from(!commands.is_empty()));
                    } else if let Some((thread, command)) = commands.pop_front() {
                        // An event loop that has ended does not answer.
                        let _ = through.get(thread).map(|through| through.try_send(command));
                    }
                    awaited.retain_mut(|awaited| !awaited());
                    if !commands.is_empty() || !awaited.is_empty() {
                        return newest;
                    }
                    self.state = State::Works;
                }
            }
        }
    }

    /// Reports whether commands have not come to their packet threads yet.
    pub(crate) fn has_commands(&self) -> bool {
        matches!(&self.state, State::Waits { commands, .. } if !commands.is_empty())
    }

    /// Waits for the control thread.
    fn wait(&mut self) -> Did {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut asked = Vec::new();
        let mut did = pin!(tokio::task::unconstrained(std::future::poll_fn(|cx| {
            // Before its questions: those before the end are there by then.
            if self.finished.is_none()
                && let Poll::Ready(finished) = self.done.poll_recv(cx)
            {
                self.finished = Some(finished.expect("a control thread that does not panic"));
            }
            while let Some(queue) = self.queues.get_mut(asked.len())
                && let Poll::Ready(command) = queue.poll_recv(cx)
            {
                asked.push(command.expect("a handle that lives"));
            }
            if asked.len() == self.queues.len() {
                return Poll::Ready(Did::Ask(std::mem::take(&mut asked)));
            }
            let finished = self.finished.take_if(|_| asked.is_empty());
            finished.map_or(Poll::Pending, |snapshot| Poll::Ready(Did::Finish(snapshot)))
        })));
        loop {
            match did.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(did) => return did,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

/// Makes the answer to a command come here first. `None` if there is none.
fn relay(command: &mut Command) -> Option<Awaited> {
    Some(match command {
        Command::Snapshot { answer, .. } => relay_answer(answer),
        Command::Change { answer, .. } => relay_answer(answer),
        Command::TakePeer { answer, .. } => relay_answer(answer),
        Command::PeerMoved { answer, .. } => relay_answer(answer),
        _ => return None,
    })
}

fn relay_answer<T: 'static>(answer: &mut mpsc::SyncSender<T>) -> Awaited {
    let (here, answered) = mpsc::sync_channel(1);
    let mut asker = Some(std::mem::replace(answer, here));
    Box::new(move || match answered.try_recv() {
        Ok(answer) => {
            let _ = asker.take().map(|asker| asker.send(answer));
            true
        }
        // The event loop has ended.
        Err(mpsc::TryRecvError::Disconnected) => {
            asker = None;
            true
        }
        Err(mpsc::TryRecvError::Empty) => false,
    })
}
