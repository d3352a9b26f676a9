"""Does every interval cover what it claims?"""
