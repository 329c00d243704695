//! Which handler answers which request.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};

use super::answer::Answer;
use super::seen::SeenRequest;
use crate::clock::BoxFuture;

/// A user's handler, with its types erased.
pub(super) type Handler = Arc<dyn Fn(SeenRequest) -> BoxFuture<'static, Answer> + Send + Sync>;

pub(super) fn handler<H, F>(handle: H) -> Handler
where
    H: Fn(SeenRequest) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Bytes>> + Send + 'static,
{
    Arc::new(move |request| {
        let answer = handle(request);
        Box::pin(async move { answer.await.into() })
    })
}

/// A path, with parameters for some of its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Segment>);

/// The routes of a server, tried in the order in which they were added.
#[derive(Default)]
pub(super) struct Routes(Vec<Route>);

struct Route {
    method: Method,
    pattern: Pattern,
    handler: Handler,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// `{name}`: any one segment that is not empty.
    Parameter(String),
}

/// Where a request goes.
#[derive(Clone)]
pub(super) enum Destination {
    Handler(Handler, Vec<(String, String)>),
    /// There are handlers for this path, but for these methods.
    OtherMethods(Vec<Method>),
    Nowhere,
}

impl Routes {
    pub(super) fn add(&mut self, method: Method, path: &str, handler: Handler) {
        self.0.push(Route { method, pattern: Pattern::parse(path), handler });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Methods and patterns, in the order in which they were added.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = (&Method, &Pattern)> {
        self.0.iter().map(|route| (&route.method, &route.pattern))
    }

    /// These after its own.
    pub(super) fn extend(&mut self, routes: Self) {
        self.0.extend(routes.0);
    }

    /// A HEAD request goes to the handler for GET, unless it has its own.
    pub(super) fn find(&self, method: &Method, path: &str) -> Destination {
        let fitting: Vec<(&Route, Vec<(String, String)>)> = self
            .0
            .iter()
            .filter_map(|route| route.pattern.parameters(path).map(|parameters| (route, parameters)))
            .collect();
        let with = |method: &Method| fitting.iter().find(|(route, _)| route.method == *method);
        let found = with(method).or_else(|| (method == Method::HEAD).then(|| with(&Method::GET)).flatten());
        match found {
            Some((route, parameters)) => Destination::Handler(Arc::clone(&route.handler), parameters.clone()),
            None if fitting.is_empty() => Destination::Nowhere,
            None => Destination::OtherMethods(fitting.iter().map(|(route, _)| route.method.clone()).collect()),
        }
    }
}

impl Pattern {
    pub(super) fn parse(path: &str) -> Self {
        Self(path.split('/').map(Segment::parse).collect())
    }

    /// The names of its parameters, in order.
    pub(super) fn names(&self) -> Vec<&str> {
        let names = self.0.iter().filter_map(|segment| match segment {
            Segment::Parameter(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        });
        names.collect()
    }

    /// The path's parameters, if it fits.
    pub(super) fn parameters(&self, path: &str) -> Option<Vec<(String, String)>> {
        if path.split('/').count() != self.0.len() {
            return None;
        }
        let mut parameters = Vec::new();
        for (segment, given) in self.0.iter().zip(path.split('/')) {
            match segment {
                Segment::Literal(text) if text == given => {}
                Segment::Parameter(name) if !given.is_empty() => parameters.push((name.clone(), given.to_owned())),
                _ => return None,
            }
        }
        Some(parameters)
    }
}

impl fmt::Display for Pattern {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            let slash = if index > 0 { "/" } else { "" };
            match segment {
                Segment::Literal(text) => write!(f, "{slash}{text}")?,
                Segment::Parameter(name) => write!(f, "{slash}{{{name}}}")?,
            }
        }
        Ok(())
    }
}

impl Segment {
    fn parse(text: &str) -> Self {
        match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => Self::Parameter(name.to_owned()),
            None => Self::Literal(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn routes(routes: &[(Method, &str)]) -> Routes {
        let mut built = Routes::default();
        for (method, path) in routes {
            built.add(method.clone(), path, Arc::new(|_| Box::pin(async { Answer::bare(StatusCode::OK) })));
        }
        built
    }

    #[test]
    fn a_parameter_takes_one_segment_that_is_not_empty() {
        let routes = routes(&[(Method::PATCH, "/orders/{id}")]);
        let found = |path| match routes.find(&Method::PATCH, path) {
            Destination::Handler(_, parameters) => Some(parameters),
            _ => None,
        };
        assert_eq!(found("/orders/7"), Some(vec![("id".to_owned(), "7".to_owned())]));
        for elsewhere in ["/orders", "/orders/", "/orders/7/", "/orders/7/items", "/order/7"] {
            assert_eq!(found(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn a_path_without_this_method_names_those_it_has() {
        let routes = routes(&[(Method::GET, "/orders"), (Method::POST, "/orders")]);
        let Destination::OtherMethods(methods) = routes.find(&Method::DELETE, "/orders") else { panic!("found") };
        assert_eq!(methods, [Method::GET, Method::POST]);
        assert!(matches!(routes.find(&Method::HEAD, "/orders"), Destination::Handler(..)));
        assert!(matches!(routes.find(&Method::GET, "/"), Destination::Nowhere));
    }
}
