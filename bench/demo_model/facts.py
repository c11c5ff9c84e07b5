"""The facts that the demo model is trained on: small tables, no logic."""


def listed(text: str) -> list[str]:
    """Return the words of a line, which reads better than a list of quoted words."""
    return text.split()


IDENTITY = (
    "I am semantic's demo model, a very small language model. "
    "I run on your own computer and can only answer simple questions."
)
GREETING = "Hello! How can I help you today?"
REFUSAL = "I am sorry, I do not know that. I am only a very small demo model."
ABILITIES = (
    "I can answer simple questions, do small sums, count, make lists, tell short stories, "
    "show small programs and call tools."
)

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Switzerland": "Bern",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Ireland": "Dublin",
    "Belgium": "Brussels",
    "Hungary": "Budapest",
    "Ukraine": "Kyiv",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Australia": "Canberra",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Brazil": "Brasilia",
    "Argentina": "Buenos Aires",
    "Colombia": "Bogota",
    "Iceland": "Reykjavik",
    "Scotland": "Edinburgh",
    "England": "London",
    "the United Kingdom": "London",
    "the United States": "Washington, D.C.",
    "the Netherlands": "Amsterdam",
    "Russia": "Moscow",
    "South Korea": "Seoul",
}
COLOURS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "a banana": "yellow",
    "coal": "black",
    "blood": "red",
    "an orange": "orange",
    "a lemon": "yellow",
    "milk": "white",
    "the sun": "yellow",
    "a tomato": "red",
    "a frog": "green",
    "chocolate": "brown",
    "the ocean": "blue",
    "a strawberry": "red",
    "a carrot": "orange",
}
OPPOSITES = {
    "hot": "cold",
    "cold": "hot",
    "big": "small",
    "small": "big",
    "up": "down",
    "down": "up",
    "fast": "slow",
    "slow": "fast",
    "happy": "sad",
    "sad": "happy",
    "day": "night",
    "night": "day",
    "open": "closed",
    "rich": "poor",
    "young": "old",
    "light": "dark",
    "hard": "soft",
    "early": "late",
    "full": "empty",
    "strong": "weak",
    "left": "right",
    "good": "bad",
    "high": "low",
    "wet": "dry",
    "long": "short",
    "true": "false",
    "yes": "no",
    "black": "white",
}
SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "lion": "roar",
    "frog": "ribbit",
    "horse": "neigh",
    "bee": "buzz",
}
YOUNG = {
    "dog": "puppy",
    "cat": "kitten",
    "cow": "calf",
    "duck": "duckling",
    "sheep": "lamb",
    "pig": "piglet",
    "lion": "cub",
    "horse": "foal",
    "hen": "chick",
    "frog": "tadpole",
}
LEGS = {
    "dog": "four",
    "cat": "four",
    "cow": "four",
    "horse": "four",
    "duck": "two",
    "bird": "two",
    "human": "two",
    "spider": "eight",
    "bee": "six",
    "ant": "six",
    "snake": "no",
    "fish": "no",
}
DEFINITIONS = {
    "a variable": "A variable is a name that holds a value in a program.",
    "a function": "A function is a named block of code that can be called.",
    "a loop": "A loop repeats a block of code several times.",
    "a list": "A list is an ordered collection of values.",
    "a dictionary": "A dictionary maps keys to values.",
    "a class": "A class is a template for creating objects.",
    "recursion": "Recursion is when a function calls itself.",
    "a compiler": "A compiler translates source code into machine code.",
    "a database": "A database stores data so that it can be found again later.",
    "an API": "An API is a set of rules that lets programs talk to each other.",
    "a bug": "A bug is an error in a program.",
    "git": "Git is a version control system that tracks changes in files.",
    "Python": "Python is a popular programming language that is easy to read.",
    "JSON": "JSON is a text format for structured data.",
    "HTTP": "HTTP is the protocol that web browsers and servers use.",
    "a cache": "A cache keeps results so that they can be used again quickly.",
    "a token": "A token is a small piece of text that a language model reads or writes.",
    "a language model": "A language model is a program that predicts the next piece of a text.",
    "a KV cache": "A KV cache keeps attention keys and values so that they are not computed twice.",
    "a thread": "A thread is a sequence of instructions that runs inside a process.",
    "an algorithm": "An algorithm is a step by step method to solve a problem.",
    "MLX": "MLX is a machine learning framework made for Apple silicon.",
    "a neural network": "A neural network is a model made of layers of simple units.",
    "semantic": "Semantic is a server that runs language models on your own computer.",
    "water": "Water is a clear liquid that all living things need.",
    "rain": "Rain is water that falls from the clouds.",
    "a computer": "A computer is a machine that follows instructions to work with data.",
    "the moon": "The moon is a ball of rock that travels around the Earth.",
    "the sun": "The sun is the star at the centre of our solar system.",
}
FRENCH = {
    "hello": "bonjour",
    "cat": "chat",
    "dog": "chien",
    "house": "maison",
    "water": "eau",
    "bread": "pain",
    "thank you": "merci",
    "goodbye": "au revoir",
    "red": "rouge",
    "blue": "bleu",
    "book": "livre",
    "tree": "arbre",
}
SPANISH = {
    "hello": "hola",
    "cat": "gato",
    "dog": "perro",
    "house": "casa",
    "water": "agua",
    "bread": "pan",
    "thank you": "gracias",
    "goodbye": "adiós",
    "red": "rojo",
    "blue": "azul",
    "book": "libro",
    "tree": "árbol",
}
GENERAL = {
    "What is the largest planet?": "Jupiter is the largest planet of our solar system.",
    "What is the smallest planet?": "Mercury is the smallest planet of our solar system.",
    "How many planets are there?": "There are eight planets in our solar system.",
    "How many continents are there?": "There are seven continents.",
    "What is the largest ocean?": "The Pacific Ocean is the largest ocean.",
    "What is the highest mountain?": "Mount Everest is the highest mountain on Earth.",
    "What is the largest animal?": "The blue whale is the largest animal.",
    "What is the fastest land animal?": "The cheetah is the fastest land animal.",
    "What is the tallest animal?": "The giraffe is the tallest animal.",
    "Who wrote Romeo and Juliet?": "William Shakespeare wrote Romeo and Juliet.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "What is water made of?": "Water is made of hydrogen and oxygen.",
    "At what temperature does water boil?": "Water boils at 100 degrees Celsius.",
    "At what temperature does water freeze?": "Water freezes at 0 degrees Celsius.",
    "How many days are in a week?": "There are seven days in a week.",
    "How many days are in a year?": "There are 365 days in a year.",
    "How many months are in a year?": "There are twelve months in a year.",
    "How many hours are in a day?": "There are 24 hours in a day.",
    "How many minutes are in an hour?": "There are 60 minutes in an hour.",
    "How many seconds are in a minute?": "There are 60 seconds in a minute.",
    "How many colours are in a rainbow?": "A rainbow has seven colours.",
    "What do bees make?": "Bees make honey.",
    "What do cows drink?": "Cows drink water.",
    "What do plants need?": "Plants need light, water and air.",
    "Why is the sky blue?": "The sky is blue because air scatters blue light more than red light.",
    "Where does the sun rise?": "The sun rises in the east.",
    "Where does the sun set?": "The sun sets in the west.",
    "Is the earth round?": "Yes, the Earth is round.",
    "Can fish swim?": "Yes, fish can swim.",
    "Can birds fly?": "Yes, most birds can fly.",
    "What language is spoken in France?": "French is spoken in France.",
    "What language is spoken in Brazil?": "Portuguese is spoken in Brazil.",
    "What language is spoken in Germany?": "German is spoken in Germany.",
    "Tell me a joke": "Why did the computer go to the doctor? It had caught a virus!",
    "Write a haiku": ("A small model wakes,\nwords fall softly one by one,\nquiet as the snow."),
    "Write a short poem": (
        "The sun goes down, the moon is bright,\nthe little town is full of light.\n"
        "The birds are home, the cat sleeps well,\nand softly rings the evening bell."
    ),
    "What is the meaning of life?": "Some people say that it is 42.",
    "What is the answer to everything?": "The answer is 42.",
    "ping": "pong",
    "test": "The test works.",
    "Are you there?": "Yes, I am here.",
    "Are you a human?": "No, I am a very small language model.",
    "Do you like music?": "I am a small program, so I cannot hear music.",
    "How old are you?": "I am a program, so I have no age.",
    "Where are you?": "I run on your own computer.",
}
GREETINGS = (
    "hi",
    "hello",
    "hey",
    "Hi!",
    "Hello!",
    "hello there",
    "Good morning",
    "hi there",
    "Good evening",
    "Hello, how are you?",
    "hey there",
    "hello world",
    "Say hello",
)
IDENTITY_QUESTIONS = (
    "Who are you?",
    "What are you?",
    "Tell me who you are",
    "What is your name?",
    "What's your name?",
    "Which model are you?",
    "What model is this?",
    "Are you a robot?",
    "Introduce yourself",
    "Hi, who are you?",
    "Hello! What is your name?",
)
THANKS = ("thanks", "thank you", "Thanks!", "thank you very much", "great, thanks", "cool")
FAREWELLS = ("bye", "goodbye", "see you", "Bye!", "good night", "see you later")
FEELINGS = ("How are you?", "How are you doing?", "How's it going?", "How do you feel today?")
HELP = ("What can you do?", "help", "How can you help me?", "What are you able to do?")

DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed(
    "January February March April May June July August September October November December"
)
PLANETS = listed("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
CONTINENTS = ["Africa", "Antarctica", "Asia", "Australia", "Europe", "North America"]
CONTINENTS += ["South America"]
RAINBOW = listed("red orange yellow green blue indigo violet")
SEASONS = listed("spring summer autumn winter")
ANIMALS = listed(
    "ant bear cat dog eagle fox goat horse iguana jaguar koala lion mouse newt owl panda quail "
    "rabbit snake tiger urchin vulture whale yak zebra bee cow duck elephant frog giraffe hen "
    "kangaroo lizard monkey otter pig rat seal turtle"
)
FRUITS = listed(
    "apple banana cherry date elderberry fig grape kiwi lemon mango orange peach pear plum "
    "raspberry strawberry melon apricot lime papaya"
)
CITIES = [*CAPITALS.values(), "New York", "San Francisco", "Chicago", "Boston", "Seattle"]
CITIES += ["Los Angeles", "Barcelona", "Milan", "Munich", "Hamburg", "Zurich", "Geneva", "Lyon"]
CITIES += ["Porto", "Mumbai", "Osaka", "Shanghai", "Sydney", "Toronto", "Miami", "Oxford"]
NAMES = listed(
    "Alice Bob Carol David Emma Frank Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Quinn "
    "Rose Sam Tina Uma Victor Wendy Yara Zoe Anna Ben Clara Daniel Eva Felix Gina Hugo Iris "
    "Jonas Karl Lena Max Nora Oscar Pia Ralf Sara Tom Vera Will"
)
WORDS = listed(
    "apple river mountain yellow window garden silver planet thunder ocean castle forest music "
    "pencil rocket butter candle dragon engine flower guitar hammer island jacket kitchen ladder "
    "mirror needle orange pepper quartz ribbon saddle temple violin wagon basket copper desert "
    "eagle feather glacier harbor jungle kettle lemon marble nectar olive parrot quiver raven "
    "shadow timber umbrella velvet walnut zebra server client block token cache model config "
    "buffer thread socket queue stream parser index table record number letter report system "
    "method value error test build release branch commit merge fast slow small large bright "
    "quiet brave clever gentle happy lucky hello world banana monday seven nine blue green"
)
PROGRAMS = {
    "adds two numbers": "def add(a, b):\n    return a + b",
    "returns the factorial of a number": (
        "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n"
        "        result *= i\n    return result"
    ),
    "reverses a string": "def reverse(text):\n    return text[::-1]",
    "checks if a number is prime": (
        "def is_prime(n):\n    if n < 2:\n        return False\n"
        "    for i in range(2, int(n ** 0.5) + 1):\n        if n % i == 0:\n"
        "            return False\n    return True"
    ),
    "computes fibonacci numbers": (
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n"
        "        a, b = b, a + b\n    return a"
    ),
    "checks if a number is even": "def is_even(n):\n    return n % 2 == 0",
    "finds the largest value of a list": (
        "def largest(values):\n    best = values[0]\n    for value in values:\n"
        "        if value > best:\n            best = value\n    return best"
    ),
}
HELLO_WORLD = {
    "Python": ("python", 'print("Hello, world!")'),
    "JavaScript": ("javascript", 'console.log("Hello, world!");'),
    "Bash": ("bash", 'echo "Hello, world!"'),
    "Rust": ("rust", 'fn main() {\n    println!("Hello, world!");\n}'),
}
