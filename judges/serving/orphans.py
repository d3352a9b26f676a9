"""What an owner that was killed leaves: the book of its service and, until they have ended too, its
servers."""

from __future__ import annotations

from judges.serving import server
from judges.serving.book import Book, Service
from judges.serving.server import Server

LEFT_S = 20.0
"""How long servers of an owner that was killed may take to end before they are killed."""


def end_servers(service: Service, book: Book) -> bool:
    """End what still runs of the servers in a book whose owner is gone, where they are processes of
    this place; whether they are. Elsewhere they end with their owner."""
    if book.owner.kernel != service.place.kernel:
        return False
    servers = [Server(each.pid, each.started, each.url, each.log) for each in book.replicas]
    server.stop(servers, LEFT_S)
    return True


def clear(service: Service) -> bool:
    """End the servers of a service without an owner and take its book away; whether that was done.
    One that has an owner, or a user who may start it again, stays. The caller holds the lock."""
    book = service.read()
    if book is None or service.owned(book) or any(service.users()):
        return False
    end_servers(service, book)
    service.clear()
    return True
