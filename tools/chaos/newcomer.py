"""An honest tenant that arrives while somebody else misbehaves: it must get in, and its puts must be verified."""
from bystander import Ring
from child import Violation
from tenant import Lost, Wrong


def newcomer(channel, sockets, group, seed):
    try:
        ring = Ring(sockets, group, seed)
        for _ in range(3):
            ring.transfer()
        ring.close()
        channel.say(lost="")
    except Wrong as error:
        channel.say(lost=f"wrong data: {error}")
    except (Lost, OSError) as error:
        channel.say(lost=str(error))


def must_get_in(scene, while_what, seconds=30.0):
    """A violation when an honest newcomer of the bystander's user finds no session, group or way for its puts."""
    child = scene.spawn(newcomer, scene.cluster.sockets(), f"newcomer {scene.seed}"[:60], scene.seed)
    why = child.hear(seconds)["lost"]
    child.kill()
    if why:
        raise Violation(f"a newcomer finds no place while {while_what}: {why}")
