"""A command that starts a process by the fork server of multiprocessing, as a sweep does."""

import multiprocessing

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.launch.preload"])
    child = context.Process(target=print, args=("from a child",), kwargs={"flush": True})
    child.start()
    child.join()
    print(child.exitcode)
