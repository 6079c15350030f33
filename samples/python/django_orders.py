"""A Django view that stores an order, and enqueues its bill in the same transaction.

The tables are those of orders.sql. If the view raises an error, neither the order nor the task exists.
"""

import json

from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from pgmill.django import Client

CREDIT = 1000


def create_order(request: HttpRequest) -> JsonResponse:
    order = json.loads(request.body)
    mill = Client()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO sample_orders (customer, amount) VALUES (%s, %s) RETURNING id",
                [order["customer"], order["amount"]],
            )
            (order_id,) = cursor.fetchone()
        task = mill.enqueue(
            "INSERT INTO sample_bills (order_id) VALUES ($1)",
            [order_id],
            queue="sample_bills",
            key=f"bill of order {order_id}",
        )
        if order["amount"] > CREDIT:
            raise PermissionDenied("the credit is used up")
    return JsonResponse({"order": order_id, "task": task.id}, status=201)


urlpatterns = [path("orders", create_order)]
