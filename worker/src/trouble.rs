//! Why a statement did not come to its end, told apart by what has to happen next.

use std::error::Error as _;
use std::io;

use queue::fail::Fault;
use tokio_postgres::Error;
use tokio_postgres::error::ErrorPosition;

/// What went wrong with a task's statement.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server, or the worker in its place, refused or failed the statement. The session lives.
    Fault(Box<Fault>),
    /// The connection is gone, and the answer with it.
    ConnectionLost(Box<Fault>),
    /// The client library lost track of the protocol: the session is of no use any more.
    Confused(Box<Fault>),
}

impl Trouble {
    /// An error that the worker raises itself.
    pub(crate) fn refused(sqlstate: &str, message: &str, hint: &str) -> Self {
        Self::Fault(Box::new(Fault {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.to_owned(),
            hint: Some(hint.to_owned()),
            ..Fault::default()
        }))
    }

    /// The answer will never come.
    pub(crate) fn backend_gone() -> Self {
        let message = "the session's backend is gone".to_owned();
        Self::ConnectionLost(Box::new(Fault { message, ..Fault::default() }))
    }

    /// What to record.
    pub(crate) fn fault(&self) -> &Fault {
        match self {
            Self::Fault(fault) | Self::ConnectionLost(fault) | Self::Confused(fault) => fault,
        }
    }

    /// Whether nobody saw how the statement ended.
    pub(crate) fn connection_lost(&self) -> bool {
        matches!(self, Self::ConnectionLost(_))
    }

    /// The same error in a text in which the statement begins `characters` later.
    pub(crate) fn moved(mut self, characters: usize) -> Self {
        let (Self::Fault(fault) | Self::ConnectionLost(fault) | Self::Confused(fault)) = &mut self;
        let characters = u32::try_from(characters).unwrap_or(u32::MAX);
        fault.position = fault.position.map(|position| position.saturating_add(characters));
        self
    }
}

impl Trouble {
    /// The same error in a text without the first `characters`.
    pub(crate) fn moved_back(mut self, characters: usize) -> Self {
        let (Self::Fault(fault) | Self::ConnectionLost(fault) | Self::Confused(fault)) = &mut self;
        let characters = u32::try_from(characters).unwrap_or(u32::MAX);
        let back =
            |position: u32| position.checked_sub(characters).filter(|position| *position > 0);
        fault.position = fault.position.and_then(back);
        self
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        if let Some(db) = error.as_db_error() {
            let fault = Box::new(Fault {
                sqlstate: Some(db.code().code().to_owned()),
                message: db.message().to_owned(),
                detail: db.detail().map(str::to_owned),
                hint: db.hint().map(str::to_owned),
                context: db.where_().map(str::to_owned),
                position: match db.position() {
                    Some(ErrorPosition::Original(position)) => Some(*position),
                    _ => None,
                },
            });
            // Whatever is FATAL ends the connection with this answer.
            return match db.severity() {
                "FATAL" | "PANIC" => Self::ConnectionLost(fault),
                _ => Self::Fault(fault),
            };
        }
        let fault = Box::new(Fault { message: queue::chain(&error), ..Fault::default() });
        let io = error.source().is_some_and(<dyn std::error::Error>::is::<io::Error>);
        if error.is_closed() || io { Self::ConnectionLost(fault) } else { Self::Confused(fault) }
    }
}
