from .api import (
    Api as Api,
    open_api as open_api,
)
from .figures import (
    Figure as Figure,
    FigureReader as FigureReader,
)
from .keys import (
    SCOPES as SCOPES,
    Identity as Identity,
    NewKey as NewKey,
    check_scopes as check_scopes,
    new_key as new_key,
)
from .link import (
    Figures as Figures,
)
from .processes import (
    check_installed as check_installed,
)
from .serving.clients import (
    Serving as Serving,
)
