"""weft as a service of Windows, in scripts/test-wine."""
import re

from world import read, until

SERVICE = "weft$wg0"


def no_service(world, name=SERVICE):
    assert world.sc("query", name)[0] != 0, f"{name} is there"


def failed_installation(world):
    """An interface that does not come up leaves no service. Returns whether it does come up."""
    process = world.exe("weft.exe", "service", "install", world.file())
    process.wait(120)
    text = read(process.log)
    if process.returncode == 0:
        return True
    no_service(world)
    # The command says what the service has logged.
    [reason] = re.findall(r"^error: weft\$wg0 ended with status 1: (.+); see C:.*\\wg0\.log", text, re.MULTILINE)
    assert f"error: {reason}\n" in world.log_of_service().replace("\r", ""), text
    return False


def installation(world):
    """Once more, traffic, and the end."""
    told = world.weft_exe("service", "install", world.file())
    assert "nothing to change" in told, told
    assert world.service()["enabled"] and world.service()["running"]
    world.ping(20)
    world.weft_exe("service", "remove", "wg0")
    no_service(world)


def steps(world):
    """The steps of `install` and `remove`, for a service that runs `weft run`."""
    told, _ = world.end_of(world.exe("control_tests.exe", "service::windows::calls", "--ignored"))
    assert " 1 passed" in told, told
    no_service(world)


def wrong_file(world):
    with open(f"{world.work}/wg1.conf", "w") as file:
        file.write("[Interface]\nPrivateKey = none\n")
    process = world.exe("weft.exe", "service", "install", f"Z:{world.work}/wg1.conf")
    _, log = world.end_of(process, status=78)
    assert "wg1.conf:2: PrivateKey" in log, log
    no_service(world, "weft$wg1")


def foreign_service(world):
    """A service of this name that is another program's stays as it is."""
    world.sc("create", SERVICE, "binPath=", r"C:\windows\system32\winedevice.exe")
    try:
        for what in (["install", world.file()], ["remove", "wg0"], ["status", "wg0"]):
            world.refused(r"runs `C:\windows\system32\winedevice.exe`, which is not weft", "service", *what)
        assert world.sc("query", SERVICE)[0] == 0, "it is gone"
    finally:
        world.sc("delete", SERVICE)
    no_service(world)


def make_service(world):
    """A service that runs `weft run`, which needs no set-up of the host."""
    code, _ = world.sc("create", SERVICE, "binPath=",
                       f'"Z:{world.programs}/weft.exe" --service wg0 --log info run -f wg0')
    state = world.service()
    assert code == 0 and state["installed"] and not state["running"] and not state["enabled"], state


def start_service(world):
    code, told = world.sc("start", SERVICE)
    assert code == 0, told
    until(lambda: world.service()["running"], "service")
    assert world.service()["pid"], "it has no process"
    world.weft_exe("setconf", "wg0", world.file())
    return world.ping(50)


def stopped(world, why):
    until(lambda: "STOPPED" in world.sc("query", SERVICE)[1], "end of the service")
    assert world.service()["last_exit_status"] == 0, world.service()
    assert why in world.log_of_service().splitlines()[-2], world.log_of_service()
    assert world.sc("query", SERVICE)[0] == 0, "it is gone"


def stop_service(world):
    assert world.sc("stop", SERVICE)[0] == 0
    stopped(world, "the system or the service ends")


def down_of_service(world):
    start_service(world)
    world.weft_exe("down", "wg0")
    stopped(world, "asked to take the interface down")


def failing_service(world):
    """Its exit status arrives, and its log says why."""
    other = world.interface()
    try:
        assert world.sc("start", SERVICE)[0] == 0
        until(lambda: world.service()["last_exit_status"] == 1, "end of the service")
    finally:
        world.down(other)
    assert "error: another daemon serves interface wg0" in world.log_of_service(), world.log_of_service()


def remove_service(world):
    start_service(world)
    told = world.weft_exe("service", "remove", "wg0")
    assert "weft$wg0 is removed" in told, told
    no_service(world)
    assert "not installed: nothing to remove" in world.weft_exe("service", "remove", "wg0")


def run(world, check, not_run):
    """weft as a service. What Wine's service control manager does not know, it only warns of."""
    linux = world.linux("weft")
    world.begin_services()
    check("service: status of none", lambda: world.refused("is not installed", "service", "status", "wg0"))
    comes_up = []
    check("service: install, all or nothing", lambda: comes_up.append(failed_installation(world)))
    if any(comes_up):
        check("service: install again, traffic, remove", lambda: installation(world))
    else:
        not_run("service: install again, traffic, remove", "`weft up` cannot set up the host under Wine")
    check("service: install, again, replace, fail, remove", lambda: steps(world))
    check("service: a wrong configuration", lambda: wrong_file(world))
    check("service: one of another program", lambda: foreign_service(world))
    check("service: --service by hand", lambda: world.refused("use `weft service install`", "--service", "wg0", "run",
                                                        "-f", "wg0", status=2))
    check("service: one that sc.exe has made", lambda: make_service(world))
    check("service: start, traffic", lambda: start_service(world))
    check("service: stop", lambda: stop_service(world))
    check("service: ended by down", lambda: down_of_service(world))
    check("service: one that fails", lambda: failing_service(world))
    check("service: remove, while it runs", lambda: remove_service(world))
    world.stop(linux)
