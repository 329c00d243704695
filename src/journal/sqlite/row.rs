//! A record as a row of the journal's tables, and back.

use std::borrow::Cow;

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::operation::encoding::{self, RecordError};
use crate::operation::{Closing, Record, StoredReply, StoredRequest, Wire};

/// How many columns an operation has.
pub(super) const WIDTH: usize = 28;

/// Where the checksum stands; it is over all the others.
const CHECKSUM: usize = 25;

/// An operation's columns, in order.
pub(super) struct Row<'a>([Column<'a>; WIDTH]);

enum Column<'a> {
    Null,
    Integer(i64),
    Text(Cow<'a, str>),
    Blob(Cow<'a, [u8]>),
}

impl<'a> From<&'a Record> for Row<'a> {
    fn from(record: &'a Record) -> Self {
        let (window_ms, window_ns) = encoding::split_window(record.wire.window);
        let (request, closing) = (record.request.as_ref(), record.closing.as_ref());
        let reply = closing.and_then(|closing| closing.reply.as_ref());
        let mut row = Self([
            text(record.operation.as_str()),
            text(record.phase.as_str()),
            Column::Integer(record.attempts.into()),
            time(record.begun_at),
            time(record.updated_at),
            record.first_sent_at.map_or(Column::Null, time),
            record.next_attempt_at.map_or(Column::Null, time),
            flag(record.named),
            text(record.key.as_str()),
            text(record.method.as_str()),
            text(record.url.as_str()),
            text(&record.wire.contract),
            text(&record.wire.header),
            text(encoding::serialisation_word(record.wire.serialisation)),
            Column::Integer(integer(window_ms)),
            Column::Integer(window_ns.into()),
            record.credential_scope.as_deref().map_or(Column::Null, text),
            record.fingerprint.as_ref().map_or(Column::Null, |fingerprint| blob(fingerprint.as_bytes())),
            closing
                .and_then(|closing| closing.status)
                .map_or(Column::Null, |status| Column::Integer(status.as_u16().into())),
            closing.map_or(Column::Null, |closing| flag(closing.in_front)),
            closing.map_or(Column::Null, |closing| flag(closing.after_unknown)),
            closing.map_or(Column::Null, |closing| flag(closing.resolved)),
            request.map_or(Column::Null, |request| flag(request.needs_headers)),
            request.map_or(Column::Null, |request| Column::Text(encoding::headers_to_json(&request.headers).into())),
            reply.map_or(Column::Null, |reply| Column::Text(encoding::headers_to_json(&reply.headers).into())),
            Column::Null,
            request.map_or(Column::Null, |request| blob(&request.body)),
            reply.map_or(Column::Null, |reply| blob(&reply.body)),
        ]);
        let checksum = row.checksum();
        if let Some(column) = row.0.get_mut(CHECKSUM) {
            *column = Column::Integer(checksum);
        }
        row
    }
}

impl<'a> Row<'a> {
    /// Reads the columns from `first` on.
    pub(super) fn read(row: &'a rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Self> {
        let mut columns = [const { Column::Null }; WIDTH];
        for (column, index) in columns.iter_mut().zip(first..) {
            *column = match row.get_ref(index)? {
                ValueRef::Integer(value) => Column::Integer(value),
                ValueRef::Blob(bytes) => Column::Blob(bytes.into()),
                // A damaged text need not be UTF-8. As bytes it is found out below.
                ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) => Column::Text(text.into()),
                    Err(_) => Column::Blob(bytes.into()),
                },
                ValueRef::Null | ValueRef::Real(_) => Column::Null,
            };
        }
        Ok(Self(columns))
    }

    /// The operation's columns as SQL parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &dyn rusqlite::ToSql> {
        self.0.iter().map(|column| column as &dyn rusqlite::ToSql)
    }

    /// The record, if the row is sound.
    pub(super) fn record(&self) -> Result<Record, RecordError> {
        if let Some(Column::Integer(stored)) = self.0.get(CHECKSUM)
            && *stored != self.checksum()
        {
            return Err(RecordError::Damaged("a column (its checksum does not fit)"));
        }
        let mut columns = Columns(self.0.iter());
        let operation = encoding::operation(columns.text("the operation id")?)?;
        let phase = encoding::phase(columns.text("the phase")?)?;
        let attempts = columns.small("the number of attempts")?;
        let begun_at = columns.time("begun_at")?;
        let updated_at = columns.time("updated_at")?;
        let first_sent_at = columns.optional_time("first_sent_at")?;
        let next_attempt_at = columns.optional_time("next_attempt_at")?;
        let named = columns.flag("named")?;
        let key = encoding::key(columns.text("the key")?)?;
        let method = encoding::method(columns.text("the method")?)?;
        let url = encoding::url(columns.text("the URL")?)?;
        let contract = columns.text("the contract")?.to_owned();
        let header = columns.text("the key's header")?.to_owned();
        let serialisation = encoding::serialisation(columns.text("the key's serialisation")?)?;
        let window_ms = columns.millis("the window")?;
        let window = encoding::join_window(window_ms, columns.small("the window")?);
        let credential_scope = columns.optional_text("the credential scope")?.map(str::to_owned);
        let fingerprint = columns.optional_blob("the fingerprint")?.map(fingerprint).transpose()?;
        let status = columns.optional_integer("the status")?;
        let in_front = columns.optional_flag("closing_in_front")?;
        let after_unknown = columns.optional_flag("closing_after_unknown")?;
        let resolved = columns.optional_flag("closing_resolved")?;
        let needs_headers = columns.optional_flag("request_needs_headers")?;
        let request_headers = columns.optional_text("the request's headers")?;
        let reply_headers = columns.optional_text("the reply's headers")?;
        let _checksum = columns.next();
        let request_body = columns.optional_blob("the request's body")?;
        let reply_body = columns.optional_blob("the reply's body")?;
        Ok(Record {
            operation,
            named,
            key,
            phase,
            wire: Wire { contract, header, serialisation, window },
            method,
            url,
            credential_scope,
            fingerprint,
            request: match (needs_headers, request_headers, request_body) {
                (None, None, None) => None,
                (Some(needs_headers), Some(headers), Some(body)) => Some(StoredRequest {
                    headers: encoding::headers_from_json(headers)?,
                    body: Bytes::copy_from_slice(body),
                    needs_headers,
                }),
                _ => return Err(RecordError::Damaged("the request")),
            },
            begun_at,
            first_sent_at,
            updated_at,
            next_attempt_at,
            attempts,
            closing: match (in_front, after_unknown, resolved) {
                (None, None, None) => None,
                (Some(in_front), Some(after_unknown), Some(resolved)) => Some(Closing {
                    status: status
                        .map(|code| u16::try_from(code).map_err(|_| RecordError::Damaged("the status")))
                        .transpose()?
                        .map(encoding::status)
                        .transpose()?,
                    in_front,
                    after_unknown,
                    resolved,
                    reply: match (reply_headers, reply_body) {
                        (None, None) => None,
                        (Some(headers), Some(body)) => Some(StoredReply {
                            headers: encoding::headers_from_json(headers)?,
                            body: Bytes::copy_from_slice(body),
                        }),
                        _ => return Err(RecordError::Damaged("the reply")),
                    },
                }),
                _ => return Err(RecordError::Damaged("the closing")),
            },
        })
    }

    /// About as many bytes as it takes in the file.
    pub(super) fn bytes(&self) -> usize {
        let size = |column: &Column<'_>| match column {
            Column::Null => 1,
            Column::Integer(_) => 8,
            Column::Text(text) => text.len(),
            Column::Blob(bytes) => bytes.len(),
        };
        self.0.iter().map(size).sum()
    }

    /// Changes with every change of one column; it protects against a failing disk, not against a person.
    fn checksum(&self) -> i64 {
        let mut sum = Checksum::default();
        for (index, column) in self.0.iter().enumerate() {
            if index == CHECKSUM {
                continue;
            }
            match column {
                Column::Null => sum.add(&[0]),
                Column::Integer(value) => sum.add(&value.to_le_bytes()),
                Column::Text(text) => sum.add(text.as_bytes()),
                Column::Blob(bytes) => sum.add(bytes),
            }
        }
        i64::from_le_bytes(sum.0.to_le_bytes())
    }
}

/// Eight bytes at a time, each step a permutation of the sum so far. So two inputs that differ within one such piece
/// never have the same sum.
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0x6a09_e667_f3bc_c908)
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        // Each part begins with its length, so that bytes cannot move from one column to the next.
        self.step(bytes.len() as u64);
        let (pieces, rest) = bytes.as_chunks::<8>();
        for piece in pieces {
            self.step(u64::from_le_bytes(*piece));
        }
        self.step(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }

    fn step(&mut self, word: u64) {
        // An odd factor and an xor-shift can both be undone.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// A row's columns, one after the other.
struct Columns<'r, 'a>(std::slice::Iter<'r, Column<'a>>);

impl<'r, 'a> Columns<'r, 'a> {
    fn next(&mut self) -> &'r Column<'a> {
        self.0.next().unwrap_or(&Column::Null)
    }

    fn optional_text(&mut self, what: &'static str) -> Result<Option<&'r str>, RecordError> {
        match self.next() {
            Column::Null => Ok(None),
            Column::Text(text) => Ok(Some(text)),
            _ => Err(RecordError::Damaged(what)),
        }
    }

    fn text(&mut self, what: &'static str) -> Result<&'r str, RecordError> {
        self.optional_text(what)?.ok_or(RecordError::Damaged(what))
    }

    fn optional_blob(&mut self, what: &'static str) -> Result<Option<&'r [u8]>, RecordError> {
        match self.next() {
            Column::Null => Ok(None),
            Column::Blob(bytes) => Ok(Some(bytes)),
            _ => Err(RecordError::Damaged(what)),
        }
    }

    fn optional_integer(&mut self, what: &'static str) -> Result<Option<i64>, RecordError> {
        match self.next() {
            Column::Null => Ok(None),
            Column::Integer(value) => Ok(Some(*value)),
            _ => Err(RecordError::Damaged(what)),
        }
    }

    fn integer(&mut self, what: &'static str) -> Result<i64, RecordError> {
        self.optional_integer(what)?.ok_or(RecordError::Damaged(what))
    }

    fn small(&mut self, what: &'static str) -> Result<u32, RecordError> {
        u32::try_from(self.integer(what)?).map_err(|_| RecordError::Damaged(what))
    }

    fn millis(&mut self, what: &'static str) -> Result<u64, RecordError> {
        millis(self.integer(what)?).ok_or(RecordError::Damaged(what))
    }

    fn time(&mut self, what: &'static str) -> Result<Timestamp, RecordError> {
        self.millis(what).map(Timestamp::from_millis)
    }

    fn optional_time(&mut self, what: &'static str) -> Result<Option<Timestamp>, RecordError> {
        self.optional_integer(what)?
            .map(|value| millis(value).map(Timestamp::from_millis).ok_or(RecordError::Damaged(what)))
            .transpose()
    }

    fn optional_flag(&mut self, what: &'static str) -> Result<Option<bool>, RecordError> {
        match self.optional_integer(what)? {
            None => Ok(None),
            Some(0) => Ok(Some(false)),
            Some(1) => Ok(Some(true)),
            Some(_) => Err(RecordError::Damaged(what)),
        }
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, RecordError> {
        self.optional_flag(what)?.ok_or(RecordError::Damaged(what))
    }
}

impl rusqlite::ToSql for Column<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Owned(Value::Null),
            Self::Integer(value) => ToSqlOutput::Owned(Value::Integer(*value)),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

/// SQLite's integers are signed; the end of time stands for whatever is past it.
pub(super) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn millis(value: i64) -> Option<u64> {
    if value == i64::MAX { Some(u64::MAX) } else { u64::try_from(value).ok() }
}

fn fingerprint(bytes: &[u8]) -> Result<Fingerprint, RecordError> {
    bytes.try_into().map(Fingerprint::from_bytes).map_err(|_| RecordError::Damaged("the fingerprint"))
}

fn time(at: Timestamp) -> Column<'static> {
    Column::Integer(integer(at.as_millis()))
}

fn flag(value: bool) -> Column<'static> {
    Column::Integer(value.into())
}

fn text(text: &str) -> Column<'_> {
    Column::Text(text.into())
}

fn blob(bytes: &[u8]) -> Column<'_> {
    Column::Blob(bytes.into())
}
