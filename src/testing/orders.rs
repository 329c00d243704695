//! What a server serves that was given no routes: orders, kept in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::routes::{Routes, handler};
use super::seen::SeenRequest;

#[derive(Debug, Default)]
struct Orders {
    created: usize,
    by_id: BTreeMap<String, Value>,
    deleted: BTreeSet<String>,
}

/// `/orders` and `/orders/{id}`. A change to an order that was never there creates it, so that a test of PATCH needs no
/// POST; one that was deleted stays gone.
pub(super) fn routes() -> Routes {
    let orders = Arc::new(Mutex::new(Orders::default()));
    let mut routes = Routes::default();
    let mut route = |method: Method, path: &str, act: fn(&mut Orders, &SeenRequest) -> Response<Bytes>| {
        let orders = Arc::clone(&orders);
        let act = move |request: SeenRequest| {
            let response = act(&mut orders.lock().unwrap_or_else(PoisonError::into_inner), &request);
            async { response }
        };
        routes.add(method, path, handler(act));
    };
    route(Method::POST, "/orders", Orders::create);
    route(Method::GET, "/orders", Orders::list);
    route(Method::GET, "/orders/{id}", Orders::get);
    route(Method::PATCH, "/orders/{id}", Orders::set);
    route(Method::PUT, "/orders/{id}", Orders::set);
    route(Method::DELETE, "/orders/{id}", Orders::delete);
    routes
}

impl Orders {
    fn create(&mut self, request: &SeenRequest) -> Response<Bytes> {
        self.created += 1;
        let id = format!("order-{}", self.created);
        let order = json_of(request);
        self.by_id.insert(id.clone(), order.clone());
        let mut response = json_response(StatusCode::CREATED, &json!({ "id": id, "order": order }));
        if let Ok(location) = format!("/orders/{id}").parse() {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }

    fn list(&mut self, _: &SeenRequest) -> Response<Bytes> {
        let orders: Vec<Value> = self.by_id.iter().map(|(id, order)| json!({ "id": id, "order": order })).collect();
        json_response(StatusCode::OK, &Value::Array(orders))
    }

    fn get(&mut self, request: &SeenRequest) -> Response<Bytes> {
        let id = request.param("id");
        match id.and_then(|id| self.by_id.get(id)) {
            Some(order) => json_response(StatusCode::OK, &json!({ "id": id, "order": order })),
            None => empty(StatusCode::NOT_FOUND),
        }
    }

    fn set(&mut self, request: &SeenRequest) -> Response<Bytes> {
        let id = request.param("id").unwrap_or_default();
        if self.deleted.contains(id) {
            return empty(StatusCode::NOT_FOUND);
        }
        let order = json_of(request);
        self.by_id.insert(id.to_owned(), order.clone());
        json_response(StatusCode::OK, &json!({ "id": id, "order": order }))
    }

    fn delete(&mut self, request: &SeenRequest) -> Response<Bytes> {
        let id = request.param("id").unwrap_or_default();
        if self.by_id.remove(id).is_some() {
            self.deleted.insert(id.to_owned());
        }
        empty(StatusCode::NO_CONTENT)
    }
}

/// The request's body, or null if it is no JSON.
fn json_of(request: &SeenRequest) -> Value {
    serde_json::from_slice(request.body()).unwrap_or(Value::Null)
}

fn json_response(status: StatusCode, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}
