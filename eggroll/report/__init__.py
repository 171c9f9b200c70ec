"""The report of runs, `python -m eggroll.report`: one HTML page that needs nothing beside itself.

The command is in command.py. A run's folder is read (record.py), and its figures are thinned and
put into a page (page.py) with the style and the script in assets/.
"""
