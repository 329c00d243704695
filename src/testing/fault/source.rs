//! A fault as the Rust that makes it, for a script that repeats a run.

use super::{At, CannedReply, Fault, How};

impl Fault {
    /// The expression that makes this fault, as a program that uses this crate would write it.
    #[must_use]
    pub fn source(&self) -> String {
        match (self.at(), self.how()) {
            (Some(at), Some(How::Status(CannedReply(answer)))) => {
                let mut source = format!("Fault::status({})", answer.status.as_u16());
                for (name, value) in answer.headers.iter().filter(|(name, _)| *name != http::header::CONTENT_TYPE) {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    source += &format!(".header({:?}, {value:?})", name.as_str());
                }
                let content_type = answer.headers.get(http::header::CONTENT_TYPE);
                if let Some(content_type) = content_type.and_then(|value| value.to_str().ok()) {
                    let body = answer.body.escape_ascii();
                    source += &format!(".body({content_type:?}, &b\"{body}\"[..])");
                }
                match at {
                    At::BeforeClaim => source,
                    At::AfterCommit => source + ".after_commit()",
                    _ => format!("{source}.moved_to(At::{at:?})"),
                }
            }
            (Some(at), Some(How::Garbage(bytes))) => {
                format!("Fault::new(At::{at:?}, How::Garbage(Bytes::from_static(b\"{}\")))", bytes.escape_ascii())
            }
            (Some(at), Some(How::Delay(duration))) => {
                format!("Fault::delay(At::{at:?}, Duration::from_nanos({}))", duration.as_nanos())
            }
            (Some(at), Some(How::Dribble { bytes, pause })) => format!(
                "Fault::new(At::{at:?}, How::Dribble {{ bytes: {bytes}, pause: Duration::from_nanos({}) }})",
                pause.as_nanos()
            ),
            (Some(at), Some(how)) => format!("Fault::new(At::{at:?}, How::{how:?})"),
            _ => "Fault::none()".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    /// Each line holds an expression twice: once compiled, once as text.
    macro_rules! as_written {
        ($($fault:expr),* $(,)?) => {
            $(assert_eq!($fault.source().replace(' ', ""), stringify!($fault).replace([' ', '\n'], ""));)*
        };
    }

    #[test]
    fn the_source_of_a_fault_is_what_makes_it() {
        as_written!(
            Fault::none(),
            Fault::new(At::AfterCommit, How::Fin),
            Fault::new(At::BodyBytes(10), How::Rst),
            Fault::new(At::BodyBytes(3), How::Truncate),
            Fault::new(At::AfterCommit, How::BadContentLength(7)),
            Fault::new(At::BeforeClaim, How::H2Reset(7)),
            Fault::new(At::AfterClaim, How::Garbage(Bytes::from_static(b"\x00{"))),
            Fault::delay(At::BeforeClaim, Duration::from_nanos(5)),
            Fault::new(At::BodyBytes(0), How::Dribble { bytes: 1, pause: Duration::from_nanos(5) }),
            Fault::status(503).header("retry-after", "1"),
            Fault::status(502).after_commit(),
            Fault::status(500).moved_to(At::AfterClaim),
            Fault::status(400).body("application/json", &b"{\"a\":1}"[..]),
        );
    }
}
