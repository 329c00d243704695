//! HTTP/2, frame by frame.

use super::raw::*;
use super::*;

fn order_h2(server: &Server) -> Outgoing {
    order(server.url()).through(guarded(builder().http2_prior_knowledge()))
}

/// Refuses the first request of a connection when this frame of it has come.
async fn reset_after(server: &Server, frame: u8) -> Http2 {
    let mut connection = Http2::accept(server).await;
    let (stream, _) = connection.next(frame).await;
    connection.reset(stream, REFUSED_STREAM).await;
    connection
}

/// Says goodbye when this frame has come, and that it took none of the streams.
async fn goaway_after(server: &Server, frame: u8) -> Http2 {
    let mut connection = Http2::accept(server).await;
    connection.next(frame).await;
    connection.send(GOAWAY, 0, 0, &[0_u32.to_be_bytes(), NO_ERROR.to_be_bytes()].concat()).await;
    connection
}

#[tokio::test]
async fn a_refused_stream_is_unknown_when_its_body_was_asked_for_t04_t05() {
    for body in [ORDER, b""] {
        let server = Server::bind().await;
        let order = || Outgoing { body: Bytes::from_static(body), ..order_h2(&server) };
        let frame = if body.is_empty() { HEADERS } else { DATA };
        let (by_reset, _) = against(&order(), reset_after(&server, frame)).await;
        let (by_goaway, _) = against(&order(), goaway_after(&server, frame)).await;
        for outcome in [by_reset, by_goaway] {
            assert_eq!(failed(outcome), (FailureKind::Refused, Sent::Perhaps));
        }
    }
}

#[tokio::test]
async fn a_refused_stream_is_not_sent_when_its_body_was_never_asked_for_t04() {
    // hyper 1.12 asks for the body before the peer has room for it, versions before it did not. So the errors are real
    // ones, and the witness is fresh.
    let server = Server::bind().await;
    let post = || async { order_h2(&server).client.post(server.url()).body(ORDER).send().await.unwrap_err() };
    let (by_reset, _) = tokio::join!(post(), reset_after(&server, DATA));
    let (by_goaway, _) = tokio::join!(post(), goaway_after(&server, DATA));
    for error in [by_reset, by_goaway] {
        let outgoing = order_h2(&server);
        let failure = Exchange::new(&outgoing).failure(error);
        assert_eq!((failure.kind, failure.sent), (FailureKind::Refused, Sent::No));
    }
}

#[tokio::test]
async fn reqwest_does_not_repeat_a_refused_stream_by_itself() {
    let server = Server::bind().await;
    let client = builder().http2_prior_knowledge().build().unwrap();
    let outgoing = order(server.url()).foreign().through(client);
    // With the listener gone, a repetition would fail to connect.
    let script = async {
        let server = server;
        reset_after(&server, DATA).await
    };
    let (outcome, _connection) = against(&outgoing, script).await;
    assert_eq!(failed(outcome), (FailureKind::Refused, Sent::Perhaps));
}

#[tokio::test]
async fn any_other_reset_is_unknown() {
    // PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM; and NO_ERROR, which is no reply either.
    for error in [1, 2, 8, 11, NO_ERROR] {
        let server = Server::bind().await;
        let outgoing = order_h2(&server);
        let script = async {
            let mut connection = Http2::accept(&server).await;
            let (stream, _) = connection.next(DATA).await;
            connection.reset(stream, error).await;
            connection
        };
        assert_eq!(failed(against(&outgoing, script).await.0), (FailureKind::Connection, Sent::Perhaps), "{error}");
    }
}

#[tokio::test]
async fn a_stream_refused_after_the_head_is_a_lost_reply() {
    for body in [&b""[..], b"0123456789"] {
        let server = Server::bind().await;
        let outgoing = order_h2(&server);
        let script = async {
            let mut connection = Http2::accept(&server).await;
            let (stream, _) = connection.next(DATA).await;
            connection.send(HEADERS, END_HEADERS, stream, STATUS_200).await;
            connection.send(DATA, 0, stream, body).await;
            connection.reset(stream, REFUSED_STREAM).await;
            connection
        };
        let (outcome, _connection) = against(&outgoing, script).await;
        let (bytes, failure) = broke_off(outcome);
        assert_eq!(bytes, body);
        assert_eq!((failure.kind, failure.sent), (FailureKind::ReplyLost, Sent::Perhaps));
        // The error alone would say otherwise.
        assert!(is_refused(failure.source.unwrap().downcast_ref().unwrap()));
    }
}

#[tokio::test]
async fn a_reply_shorter_than_its_length_reads_as_a_success_in_reqwest_and_is_a_lost_reply_for_us() {
    let server = Server::bind().await;
    let outgoing = order_h2(&server);
    let script = async {
        let mut connection = Http2::accept(&server).await;
        for _ in 0..2 {
            let (stream, _) = connection.next(HEADERS).await;
            connection.head(stream, "1000").await;
            connection.send(DATA, 0, stream, b"0123456789").await;
            connection.reset(stream, NO_ERROR).await;
        }
        connection
    };
    let both = async {
        let theirs = outgoing.client.get(server.url()).send().await.unwrap().bytes().await;
        (theirs, exchange(&outgoing).await)
    };
    let ((theirs, ours), _connection) = tokio::join!(both, script);
    assert_eq!(theirs.unwrap(), "0123456789");
    let (bytes, failure) = broke_off(ours);
    assert_eq!(bytes, "0123456789");
    assert_eq!((failure.kind, failure.sent), (FailureKind::ReplyLost, Sent::Perhaps));
    assert_eq!(failure.source.unwrap().to_string(), "the reply ended after 10 of 1000 bytes");
}

#[tokio::test]
async fn a_reply_that_ends_before_its_length_is_a_lost_reply() {
    let server = Server::bind().await;
    let outgoing = order_h2(&server);
    let script = async {
        let mut connection = Http2::accept(&server).await;
        let (stream, _) = connection.next(DATA).await;
        connection.head(stream, "1000").await;
        connection.send(DATA, END_STREAM, stream, b"0123456789").await;
        connection
    };
    let (outcome, _connection) = against(&outgoing, script).await;
    let (_, failure) = broke_off(outcome);
    assert_eq!((failure.kind, failure.sent), (FailureKind::ReplyLost, Sent::Perhaps));
}

#[tokio::test]
async fn a_reply_without_a_length_that_is_reset_with_no_error_cannot_be_told_from_a_whole_one() {
    // hyper takes NO_ERROR for the end of the body, and nothing that reqwest passes on says otherwise.
    let server = Server::bind().await;
    let outgoing = order_h2(&server);
    let script = async {
        let mut connection = Http2::accept(&server).await;
        let (stream, _) = connection.next(DATA).await;
        connection.send(HEADERS, END_HEADERS, stream, STATUS_200).await;
        connection.send(DATA, 0, stream, b"0123456789").await;
        connection.reset(stream, NO_ERROR).await;
        connection
    };
    let (outcome, _connection) = against(&outgoing, script).await;
    assert!(answered(outcome).is_complete());
}
