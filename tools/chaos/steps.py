"""Every step of a campaign, by family."""
import clock
import exhaustion
import floods
import hostile
import network
import objects
import processes

STEPS = [*processes.STEPS, *exhaustion.STEPS, *floods.STEPS, *hostile.STEPS, *objects.STEPS, *network.STEPS, *clock.STEPS]
