//! Result of a conversion: declarations as the text of a job file, and remarks about everything that
//! differs from the original.

use std::path::Path;

use cli::source::Source;
use cli::statement;
use queue::scan;
use schedule::Timing;
use serde::Serialize;
use toml::{Table, Value};

use crate::args::ImportOptions;
use crate::names::Names;

/// Number of places that a line of a remark names.
const SHOWN_PLACES: usize = 5;

/// Whether a definition is missing, or imported with a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemarkKind {
    /// The definition is not imported.
    LeftOut,
    /// The definition is imported, and differs in this point from the original.
    Different,
}

/// One remark about the definitions of these places.
#[derive(Debug, Serialize)]
pub struct Remark {
    #[serde(skip)]
    kind: RemarkKind,
    /// Where the definitions are: a line, or an id.
    places: Vec<String>,
    message: String,
    /// What to do instead.
    hint: Option<String>,
}

/// A schedule or a job.
#[derive(Debug)]
struct Declaration {
    place: String,
    /// The table of a job file in which the declaration is: `schedule` or `job`.
    section: &'static str,
    name: String,
    table: Table,
}

/// A definition that cannot be imported: why, and what to do instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl LeftOut {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// How a definition differs from its original: messages, each with what to do, which may be empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Differences(pub(crate) Vec<(String, String)>);

impl Differences {
    pub(crate) fn add(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.0.push((message.into(), hint.into()));
    }

    /// The definition has another name than this one.
    pub(crate) fn renamed(&mut self, kind: &str, wanted: &str, (name, prefix): (&str, &str)) {
        if name.strip_prefix(prefix) != Some(wanted) {
            let message = format!("the {kind} \"{wanted}\" is called \"{name}\"");
            self.add(message, "Names differ by more than case, and have no commas.");
        }
    }

    /// No profile is mapped to the user or role.
    pub(crate) fn unmapped(&mut self, kind: &str, user: &str) {
        self.add(
            format!("ran as {kind} \"{user}\"; will run as the login of tasks (worker --task-url)"),
            format!(
                "To run as another login, declare a profile, and map it: --run-as {}=PROFILE.",
                kind.to_uppercase()
            ),
        );
    }

    pub(crate) fn manual(&mut self) {
        self.add(
            "@reboot has no counterpart; the schedule is manual",
            "Start it with pgmill schedule run-now.",
        );
    }

    /// The statement is a CALL, which runs in a transaction.
    pub(crate) fn call(&mut self) {
        self.add(
            "CALL runs in a transaction, so the procedure cannot commit",
            "If it commits, import with --print and set mode = \"autocommit\".",
        );
    }
}

/// A definition of the source.
pub(crate) struct Original<T> {
    /// Where the definition is: a line, or an id.
    pub(crate) place: String,
    pub(crate) id: String,
    /// The name that it has or would have.
    pub(crate) name: String,
    pub(crate) definition: T,
}

/// The declarations of a definition: a schedule, and a job if the schedule starts one.
pub(crate) struct Declared {
    pub(crate) job: Option<Table>,
    pub(crate) schedule: Table,
}

/// The declarations and remarks of an import.
#[derive(Debug, Default)]
pub struct Conversion {
    declarations: Vec<Declaration>,
    remarks: Vec<Remark>,
    definitions: usize,
}

impl Conversion {
    /// Number of definitions of the source that are imported.
    #[must_use]
    pub fn definitions(&self) -> usize {
        self.definitions
    }

    /// Imports definitions. `import` receives the name of the declarations. Differences that it has
    /// added are also reported if it fails.
    pub(crate) fn import<T>(
        &mut self,
        options: &ImportOptions,
        originals: &[Original<T>],
        import: impl Fn(&T, &str, &mut Differences) -> Result<Declared, LeftOut>,
    ) {
        let mut names = Names::new(&options.prefix, originals.iter().map(|it| it.name.as_str()));
        for Original { place, id, name, definition } in originals {
            let name = names.choose(name, id);
            let mut differences = Differences::default();
            let declared = import(definition, &name, &mut differences);
            for (message, hint) in differences.0 {
                self.differs(place, message, hint);
            }
            let Declared { job, schedule } = match declared {
                Ok(declared) => declared,
                Err(reason) => {
                    self.leave_out(place, reason);
                    continue;
                }
            };
            self.definitions += 1;
            let tables = job.into_iter().map(|job| ("job", job)).chain([("schedule", schedule)]);
            self.declarations.extend(tables.map(|(section, table)| {
                let (place, name) = (place.clone(), name.clone());
                Declaration { place, section, name, table }
            }));
        }
    }

    /// Reports a definition that is not imported.
    pub(crate) fn leave_out(&mut self, place: &str, reason: LeftOut) {
        self.remark(RemarkKind::LeftOut, place, reason.message, reason.hint);
    }

    /// Reports a difference of an imported definition. The hint may be empty.
    pub(crate) fn differs(
        &mut self,
        place: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.remark(RemarkKind::Different, place, message.into(), hint.into());
    }

    /// Adds the place to the remark with the same text, or else a new remark.
    fn remark(&mut self, kind: RemarkKind, place: &str, message: String, hint: String) {
        let hint = Some(hint).filter(|hint| !hint.is_empty());
        let same = |it: &&mut Remark| it.kind == kind && it.message == message && it.hint == hint;
        match self.remarks.iter_mut().find(same) {
            Some(known) => known.places.push(place.to_owned()),
            None => {
                self.remarks.push(Remark { kind, places: vec![place.to_owned()], message, hint });
            }
        }
    }

    /// Number of definitions with remarks of this kind, as far as each has one.
    #[must_use]
    pub fn count(&self, kind: RemarkKind) -> usize {
        self.remarks(kind).iter().map(|it| it.places.len()).sum()
    }

    /// Returns the remarks of this kind.
    #[must_use]
    pub fn remarks(&self, kind: RemarkKind) -> Vec<&Remark> {
        self.remarks.iter().filter(|it| it.kind == kind).collect()
    }

    /// Returns a line of text for each remark, definitions that are left out first.
    #[must_use]
    pub fn remark_lines(&self) -> Vec<String> {
        let line = |it: &Remark| {
            let word = match it.kind {
                RemarkKind::LeftOut => "left out",
                RemarkKind::Different => "different",
            };
            let shown = it.places[..it.places.len().min(SHOWN_PLACES)].join(", ");
            let more = match it.places.len().saturating_sub(SHOWN_PLACES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let hint = it.hint.as_ref().map(|hint| format!(". {hint}")).unwrap_or_default();
            format!("{word}: {shown}{more}: {}{hint}", it.message)
        };
        let both = [RemarkKind::LeftOut, RemarkKind::Different];
        both.into_iter().flat_map(|kind| self.remarks(kind)).map(line).collect()
    }

    /// Returns the declarations as a job file, in which `file` is the origin of each of them.
    #[must_use]
    pub fn job_file(&self, file: &Path) -> Source {
        let mut source = Source { path: file.to_owned(), ..Source::default() };
        let name = place(file);
        for declaration in &self.declarations {
            if !source.text.is_empty() {
                source.text.push('\n');
            }
            source.origins.push((source.text.len(), format!("{name}: {}", declaration.place)));
            let comment = declaration.place.replace(char::is_control, " ");
            source.text.push_str(&format!("# {comment}\n{}", declaration.text()));
        }
        source
    }
}

impl Declaration {
    fn text(&self) -> String {
        let named = Table::from_iter([(self.name.clone(), Value::Table(self.table.clone()))]);
        let root = Table::from_iter([(self.section.to_owned(), Value::Table(named))]);
        root.to_string()
    }
}

/// Returns the statement without a byte order mark at its start, if a worker would run it.
///
/// # Errors
/// Returns why not: it has no SQL, or parts that only a client such as psql can execute.
pub(crate) fn runnable(statement: &str) -> Result<&str, LeftOut> {
    if statement.contains('\0') {
        return Err(LeftOut::new("the statement contains a NUL byte", "Remove it."));
    }
    let statement = scan::without_byte_order_mark(statement);
    match statement::runnable(statement) {
        Ok(()) => Ok(statement),
        Err((_, error)) => {
            let hint = error.hint.unwrap_or_else(|| "Write the statement that it runs.".to_owned());
            Err(LeftOut::new(error.message, hint))
        }
    }
}

/// Returns the timing, if schedules can have it.
///
/// # Errors
/// Returns why not, for example because it never fires.
pub(crate) fn valid_timing(timing: &str, original: &str) -> Result<String, LeftOut> {
    match Timing::parse(timing) {
        Ok(parsed) => Ok(parsed.to_string()),
        Err(error) => {
            let hint = error.hint.unwrap_or_else(|| "Correct the schedule.".to_owned());
            Err(LeftOut::new(
                format!("schedule \"{original}\": {}", error.message),
                sentence(&hint),
            ))
        }
    }
}

/// Returns a fragment as a sentence.
fn sentence(fragment: &str) -> String {
    let mut letters = fragment.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    let text: String = first.into_iter().chain(letters).collect();
    if text.ends_with(['.', '?', '!']) { text } else { format!("{text}.") }
}

/// Returns the file as messages name it.
pub(crate) fn place(file: &Path) -> String {
    if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() }
}
