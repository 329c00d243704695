//! When the server wants to see the next attempt.

use std::time::Duration;

use http::HeaderMap;
use http::header::{DATE, HeaderValue};

use crate::clock::Timestamp;
use crate::contract::{Contract, RetryAfterUnit};

/// How long the server asks to wait, counted from the arrival of its reply. Of the contract's headers the first that
/// can be read decides, and of several lines of it the longest wish. What cannot be read, and a time that has passed,
/// is no wish.
///
/// Other clients read `soon` as 0, and came back at once.
pub(crate) fn retry_after(contract: &Contract, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let made = made_at(headers).unwrap_or_else(|| whole_seconds(now));
    contract
        .retry_after_headers()
        .iter()
        .find_map(|(name, unit)| headers.get_all(name).iter().filter_map(|value| wish(value, *unit, made)).max())
}

/// When the server made the reply, by its own clock. Dates are compared with this and not with our clock, which may be
/// off. The reply arrives later than it was made, so counting from its arrival errs on the late side.
fn made_at(headers: &HeaderMap) -> Option<Timestamp> {
    headers.get_all(DATE).iter().filter_map(|value| date(text(value)?)).min()
}

/// Our own time as a `Date` header would give it. Whoever writes "in 1 s" as a date cuts off the fraction of its
/// second; if ours stayed, the next attempt would be up to a second early.
fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.as_millis() / 1_000 * 1_000)
}

fn wish(value: &HeaderValue, unit: RetryAfterUnit, made: Timestamp) -> Option<Duration> {
    let text = text(value)?;
    match unit {
        RetryAfterUnit::SecondsOrDate => number(text).map(Duration::from_secs).or_else(|| {
            let wait = date(text)?.since(made);
            (!wait.is_zero()).then_some(wait)
        }),
        RetryAfterUnit::Milliseconds => number(text).map(Duration::from_millis),
    }
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(str::trim_ascii)
}

/// Digits and nothing else (RFC 9110 section 10.2.3). More than fit are longer than any cap, which must not become no
/// wait at all.
fn number(text: &str) -> Option<u64> {
    let digits_only = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits_only.then(|| text.parse().unwrap_or(u64::MAX))
}

/// An HTTP-date in any of its three forms (RFC 9110 section 5.6.7).
fn date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text).ok().map(Timestamp::from)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use http::header::RETRY_AFTER;
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{Rng as _, RngExt as _, SeedableRng as _};

    use super::*;

    /// Thu, 27 Aug 2026 11:10:53 GMT, the server's time in case A-01.
    const NOW: Timestamp = Timestamp::from_millis(1_787_829_053_000);
    const DATE_NOW: &str = "Thu, 27 Aug 2026 11:10:53 GMT";
    const YEARS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    /// What the default contract makes of this value, at `NOW` and without a `Date`.
    fn of(value: &str) -> Option<Duration> {
        retry_after(&Contract::default(), &headers(&[("retry-after", value)]), NOW)
    }

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn a01_a_date_two_minutes_ahead_is_two_minutes() {
        assert_eq!(of("Thu, 27 Aug 2026 11:12:53 GMT"), secs(120));
    }

    #[test]
    fn a02_a_day_is_a_day() {
        assert_eq!(of("86400"), secs(86_400));
    }

    #[test]
    fn a03_a_word_is_ignored_and_not_zero() {
        for unreadable in ["soon", "", " ", "1.5", "1,5", "10s", "0x10", "1e3", "+5", "1 2", "120, 60", "NaN", "\u{a0}"]
        {
            assert_eq!(of(unreadable), None, "{unreadable:?}");
        }
    }

    #[test]
    fn a03_bytes_that_are_no_text_are_ignored() {
        let mut headers = HeaderMap::new();
        for bytes in [&b"\xff\xfe"[..], b"5\xb2", "\u{0665}".as_bytes()] {
            headers.insert(RETRY_AFTER, HeaderValue::from_bytes(bytes).unwrap());
            assert_eq!(retry_after(&Contract::default(), &headers, NOW), None);
        }
    }

    #[test]
    fn a06_a_negative_number_is_ignored() {
        assert_eq!([of("-1"), of("-0"), of("-99999999999999999999")], [None; 3]);
    }

    #[test]
    fn a07_a_date_that_has_passed_means_backoff_and_not_at_once() {
        assert_eq!(of("Thu, 27 Aug 2026 11:10:52 GMT"), None);
        assert_eq!(of("Thu, 01 Jan 1970 00:00:00 GMT"), None);
        // Exactly now has passed when the next attempt could start.
        assert_eq!(of(DATE_NOW), None);
    }

    #[test]
    fn a10_milliseconds_are_read_where_the_contract_lists_them() {
        let reply = headers(&[("retry-after-ms", "250"), ("retry-after", "1")]);
        let listed = Contract::default().retry_after_header("retry-after-ms", RetryAfterUnit::Milliseconds);
        assert_eq!(retry_after(&listed, &reply, NOW), Some(Duration::from_millis(250)));
        assert_eq!(retry_after(&Contract::default(), &reply, NOW), secs(1));
    }

    #[test]
    fn a10_a_header_that_cannot_be_read_leaves_it_to_the_next() {
        let listed = Contract::default().retry_after_header("retry-after-ms", RetryAfterUnit::Milliseconds);
        for unreadable in ["", "soon", "-1", "250.5", "Thu, 27 Aug 2026 11:12:53 GMT"] {
            let reply = headers(&[("retry-after-ms", unreadable), ("retry-after", "7")]);
            assert_eq!(retry_after(&listed, &reply, NOW), secs(7), "{unreadable:?}");
        }
    }

    #[test]
    fn a11_no_wish_is_cut_down() {
        assert_eq!([of("61"), of("3600")], [secs(61), secs(3_600)]);
    }

    #[test]
    fn a11_more_digits_than_fit_are_longer_than_any_cap_and_not_zero() {
        for digits in ["18446744073709551615", "18446744073709551616", "99999999999999999999", &"9".repeat(4_000)] {
            assert!(of(digits) > Some(YEARS), "{digits}");
            let reply = headers(&[("retry-after-ms", digits)]);
            let listed = Contract::default().retry_after_header("retry-after-ms", RetryAfterUnit::Milliseconds);
            assert!(retry_after(&listed, &reply, NOW) > Some(YEARS), "{digits}");
        }
        assert_eq!(of("00000000000000000000000007"), secs(7));
    }

    #[test]
    fn a12_a_date_one_second_ahead_is_not_undercut_by_the_fraction_that_it_lost() {
        // The server says "in 1 s" at every millisecond of a second; a date can say only which second that falls into.
        for millis in 0..1_000 {
            let now = Timestamp::from_millis(NOW.as_millis() + millis);
            let date = now.plus(Duration::from_secs(1)).to_string();
            let without_date = retry_after(&Contract::default(), &headers(&[("retry-after", &date)]), now);
            assert_eq!(without_date, secs(1), "{millis} ms");
            let reply = headers(&[("retry-after", &date), ("date", &now.to_string())]);
            assert_eq!(retry_after(&Contract::default(), &reply, now), secs(1), "{millis} ms");
        }
    }

    #[test]
    fn a12_no_attempt_is_before_the_date() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(12);
        for _ in 0..10_000 {
            let now = Timestamp::from_millis(random.random_range(0..4_000_000_000_000));
            let wanted = now.plus(Duration::from_millis(random.random_range(1_000..1_000_000))).to_string();
            let wait = retry_after(&Contract::default(), &headers(&[("retry-after", &wanted)]), now).unwrap();
            let date = Timestamp::from(httpdate::parse_http_date(&wanted).unwrap());
            assert!(now.plus(wait) >= date, "{now:?} + {wait:?} < {wanted}");
            assert!(now.plus(wait) < date.plus(Duration::from_secs(1)), "{now:?} + {wait:?} is late for {wanted}");
        }
    }

    #[test]
    fn a16_the_three_forms_of_a_date_are_the_same_date() {
        assert_eq!(of("Thu, 27 Aug 2026 11:12:53 GMT"), secs(120));
        assert_eq!(of("Thursday, 27-Aug-26 11:12:53 GMT"), secs(120));
        assert_eq!(of("Thu Aug 27 11:12:53 2026"), secs(120));
        // asctime pads the day with a space.
        assert_eq!(of("Tue Sep  1 11:10:53 2026"), secs(5 * 24 * 60 * 60));
    }

    #[test]
    fn a16_dates_that_do_not_exist_are_ignored() {
        for date in [
            "Thu, 01 Jan 0000 00:00:00 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Thu, 01 Jan 1601 00:00:00 GMT",
            "Mon, 31 Feb 2027 00:00:00 GMT",
            "Fri, 00 Aug 2026 11:12:53 GMT",
            "Thu, 27 Aug 2026 24:12:53 GMT",
            "Thu, 27 Aug 2026 11:60:53 GMT",
            "Mon, 27 Aug 2026 11:12:53 GMT",
            "Thu, 27 Aug 2026 11:12:53 +00",
            "Thu, 27 Aug 10000 11:12:53 GMT",
            "Thu, 27 Aug 2026 11:12:53",
            "Thu Jan 01 00:00:00 0000",
            "2026-08-27T11:12:53Z",
            "GMT",
        ] {
            assert_eq!(of(date), None, "{date}");
        }
        assert!(of("Fri, 31 Dec 9999 23:59:59 GMT") > Some(YEARS));
    }

    #[test]
    fn a16_nothing_that_a_header_can_carry_panics() {
        let contract = Contract::default().retry_after_header("retry-after-ms", RetryAfterUnit::Milliseconds);
        let seeds =
            ["Thu, 27 Aug 2026 11:12:53 GMT", "Thursday, 27-Aug-26 11:12:53 GMT", "Tue Sep  1 11:10:53 2026", "120"];
        for seed in 0..50_000_u64 {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            // A readable value with a few bytes changed gets past the first checks; noise alone would not.
            let mut bytes = seeds[random.random_range(0..seeds.len())].as_bytes().to_vec();
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            bytes.truncate(random.random_range(0..=bytes.len() * 4));
            let Ok(value) = HeaderValue::from_bytes(&bytes) else { continue };
            let mut headers = HeaderMap::new();
            for name in ["retry-after", "retry-after-ms", "date"] {
                headers.append(name, value.clone());
            }
            let now = Timestamp::from_millis(random.next_u64());
            // Where it is read as a date, it equals the Date and so is no wish.
            let wish = retry_after(&contract, &headers, now);
            assert!(wish.is_none() || bytes.trim_ascii().iter().all(u8::is_ascii_digit), "{value:?} gave {wish:?}");
        }
    }

    #[test]
    fn a17_zero_is_a_wish_and_the_floor_is_for_the_policy_to_set() {
        assert_eq!([of("0"), of("000")], [secs(0), secs(0)]);
    }

    #[test]
    fn a_date_is_taken_by_the_server_s_clock_and_not_by_ours() {
        let reply = headers(&[("date", DATE_NOW), ("retry-after", "Thu, 27 Aug 2026 11:12:53 GMT")]);
        // A clock an hour off either way would wait an hour, or not at all.
        for skewed in [0, NOW.as_millis() - 3_600_000, NOW.as_millis() + 3_600_000, u64::MAX] {
            assert_eq!(retry_after(&Contract::default(), &reply, Timestamp::from_millis(skewed)), secs(120));
        }
    }

    #[test]
    fn a_date_header_that_cannot_be_read_leaves_it_to_our_clock() {
        for unreadable in ["", "0", "yesterday", "Mon, 27 Aug 2026 11:10:53 GMT"] {
            let reply = headers(&[("date", unreadable), ("retry-after", "Thu, 27 Aug 2026 11:12:53 GMT")]);
            assert_eq!(retry_after(&Contract::default(), &reply, NOW), secs(120), "{unreadable:?}");
        }
    }

    #[test]
    fn seconds_do_not_depend_on_any_clock() {
        let reply = headers(&[("date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("retry-after", "30")]);
        assert_eq!(retry_after(&Contract::default(), &reply, Timestamp::from_millis(u64::MAX)), secs(30));
    }

    #[test]
    fn of_several_lines_the_longest_that_can_be_read_counts() {
        let lines = [
            ("retry-after", "3"),
            ("retry-after", "soon"),
            ("retry-after", "Thu, 27 Aug 2026 11:12:53 GMT"),
            ("retry-after", "7"),
        ];
        assert_eq!(retry_after(&Contract::default(), &headers(&lines), NOW), secs(120));
        assert_eq!(retry_after(&Contract::default(), &headers(&lines[..2]), NOW), secs(3));
        // Of two Date lines the earlier makes the wait longer.
        let dates = [("date", "Thu, 27 Aug 2026 11:11:53 GMT"), ("date", DATE_NOW), lines[2]];
        assert_eq!(retry_after(&Contract::default(), &headers(&dates), NOW), secs(120));
    }

    #[test]
    fn space_around_a_value_is_not_part_of_it() {
        assert_eq!(of(" \t120 "), secs(120));
        assert_eq!(of("  Thu, 27 Aug 2026 11:12:53 GMT\t"), secs(120));
    }

    #[test]
    fn no_header_is_no_wish() {
        assert_eq!(retry_after(&Contract::default(), &HeaderMap::new(), NOW), None);
    }
}
