"""`/docs`: the API's description, to read and to try in a browser. All of it comes from this process, so it works without the internet.

Takes the application's own OpenAPI document; leaves a page that shows it. The page is Swagger UI (Apache-2.0), as the package
fastapi-offline (MIT) carries it; nothing else of that package is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

PAGE = "/docs"
ASSETS = f"{PAGE}/assets"
# by default it would ask a validator out in the world about the document
_PARAMETERS = {"validatorUrl": "none"}
_NO_ICON = "data:,"


def install(app: FastAPI) -> None:
    """Serve the page, and what it is made of."""

    async def page(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} API",
            swagger_js_url=f"{root}{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{ASSETS}/swagger-ui.css",
            swagger_favicon_url=_NO_ICON,
            swagger_ui_parameters=_PARAMETERS,
        )

    app.add_route(PAGE, page, include_in_schema=False)
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_offline", "static")]), name="docs assets")
