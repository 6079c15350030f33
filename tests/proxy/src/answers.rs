//! The server's answers on one connection: their framing, and damage to one of their bytes.

use parking_lot::Mutex;

use crate::plan::{ArmedDamage, Damage, DamageKind};

/// Size of the type and the length of a message.
const HEADER_BYTES: usize = 5;

/// Type of the last message of an answer.
const READY_FOR_QUERY: u8 = b'Z';

/// Parser of the answers of one connection.
#[derive(Default)]
pub(crate) struct Answers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the answers are messages. The answer to an encryption request is not.
    framed: bool,
    header: [u8; HEADER_BYTES],
    /// Number of bytes of the current message so far.
    position: usize,
    /// Number of messages since the damage was armed.
    message: usize,
    armed: Option<ArmedDamage>,
    /// Sizes of the messages of the current answer since the damage was armed, with their types.
    recorded: Vec<(char, usize)>,
}

/// Result of passing bytes to the client.
pub(crate) struct Passed {
    /// Whether the damage has occurred, or the recorded answer is complete.
    pub(crate) fired: Option<Vec<(char, usize)>>,
    /// Whether the connection has to be closed after these bytes.
    pub(crate) ends: bool,
}

impl Answers {
    /// Begins to parse: from now on, answers are messages.
    pub(crate) fn begin(&self) {
        self.state.lock().framed = true;
    }

    /// Damages the answer that follows.
    pub(crate) fn arm(&self, damage: ArmedDamage) {
        let mut state = self.state.lock();
        (state.armed, state.message) = (Some(damage), 0);
        state.recorded.clear();
    }

    /// Forgets the damage unless this function accepts it.
    pub(crate) fn keep_if(&self, accepts: impl Fn(&ArmedDamage) -> bool) {
        let mut state = self.state.lock();
        state.armed = state.armed.take().filter(accepts);
    }

    /// Removes and returns the damage that has not occurred.
    pub(crate) fn take(&self) -> Option<ArmedDamage> {
        self.state.lock().armed.take()
    }

    /// Parses the bytes on their way to the client, and damages them.
    pub(crate) fn pass(&self, bytes: &mut Vec<u8>) -> Passed {
        let mut state = self.state.lock();
        let mut passed = Passed { fired: None, ends: false };
        if !state.framed {
            return passed;
        }
        for n in 0..bytes.len() {
            let original = bytes[n];
            match state.damage() {
                Some(Damage { message, byte, kind })
                    if (message, byte) == (state.message, state.position) =>
                {
                    match kind {
                        DamageKind::Flip(mask) => bytes[n] ^= mask,
                        DamageKind::Truncate => {
                            bytes.truncate(n);
                            passed.ends = true;
                        }
                        DamageKind::None => {}
                    }
                    if kind != DamageKind::None {
                        state.armed = None;
                        passed.fired = Some(Vec::new());
                    }
                    if passed.ends {
                        return passed;
                    }
                }
                _ => {}
            }
            if let Some(answer) = state.advance(original) {
                passed.fired = Some(answer);
            }
        }
        passed
    }
}

impl State {
    fn damage(&self) -> Option<Damage> {
        self.armed.as_ref().map(|armed| armed.damage)
    }

    /// Counts one byte. Returns the recorded answer when it is complete.
    fn advance(&mut self, byte: u8) -> Option<Vec<(char, usize)>> {
        if self.position < HEADER_BYTES {
            self.header[self.position] = byte;
        }
        self.position += 1;
        let [kind, length @ ..] = self.header;
        let size = usize::try_from(u32::from_be_bytes(length)).ok()? + 1;
        if self.position < HEADER_BYTES || self.position < size {
            return None;
        }
        (self.position, self.message) = (0, self.message + 1);
        let records = self.damage().is_some_and(|damage| damage.kind == DamageKind::None);
        if !records {
            return None;
        }
        self.recorded.push((char::from(kind), size));
        (kind == READY_FOR_QUERY).then(|| {
            self.armed = None;
            std::mem::take(&mut self.recorded)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of two messages.
    const ANSWER: [u8; 12] = *b"C\0\0\0\x05!Z\0\0\0\x05I";

    /// Kinds and sizes of recorded messages.
    type Recorded = Option<Vec<(char, usize)>>;

    fn passed(damage: Damage, part: usize) -> (Vec<u8>, bool, Recorded) {
        let answers = Answers::default();
        answers.begin();
        answers.arm(damage.into());
        let (mut all, mut fired) = (Vec::new(), None);
        for chunk in ANSWER.chunks(part) {
            let mut bytes = chunk.to_vec();
            let one = answers.pass(&mut bytes);
            all.extend(bytes);
            fired = fired.or(one.fired);
            if one.ends {
                return (all, true, fired);
            }
        }
        (all, false, fired)
    }

    #[test]
    fn exactly_one_byte_is_damaged_however_the_answer_is_split() {
        for part in 1..=ANSWER.len() {
            for (n, (message, byte)) in
                (0..2).flat_map(|message| (0..6).map(move |byte| (message, byte))).enumerate()
            {
                let flip = Damage { message, byte, kind: DamageKind::Flip(0x81) };
                let mut expected = ANSWER.to_vec();
                expected[n] ^= 0x81;
                assert_eq!(passed(flip, part), (expected, false, Some(Vec::new())));
                let cut = Damage { message, byte, kind: DamageKind::Truncate };
                assert_eq!(passed(cut, part), (ANSWER[..n].to_vec(), true, Some(Vec::new())));
            }
            let none = Damage { message: 0, byte: 0, kind: DamageKind::None };
            let recorded = Some(vec![('C', 6), ('Z', 6)]);
            assert_eq!(passed(none, part), (ANSWER.to_vec(), false, recorded));
            let beyond = Damage { message: 0, byte: 6, kind: DamageKind::Truncate };
            assert_eq!(passed(beyond, part), (ANSWER.to_vec(), false, None));
        }
    }
}
