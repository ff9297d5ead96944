"""Cities, and which of them are a train ride apart."""

from velocity import great_circle_km

CITIES = {
    "London": (51.507, -0.128),
    "Paris": (48.857, 2.352),
    "Brussels": (50.850, 4.352),
    "Amsterdam": (52.370, 4.895),
    "Frankfurt": (50.110, 8.682),
    "Berlin": (52.520, 13.405),
    "Madrid": (40.417, -3.704),
    "Barcelona": (41.385, 2.173),
    "Rome": (41.903, 12.496),
    "Milan": (45.464, 9.190),
    "Istanbul": (41.008, 28.978),
    "Cairo": (30.044, 31.236),
    "Lagos": (6.524, 3.379),
    "Johannesburg": (-26.204, 28.047),
    "Dubai": (25.205, 55.271),
    "Mumbai": (19.076, 72.878),
    "Singapore": (1.352, 103.820),
    "Hong Kong": (22.319, 114.169),
    "Tokyo": (35.676, 139.650),
    "Osaka": (34.694, 135.502),
    "Seoul": (37.567, 126.978),
    "Sydney": (-33.869, 151.209),
    "Auckland": (-36.849, 174.763),
    "Honolulu": (21.307, -157.858),
    "San Francisco": (37.775, -122.419),
    "Los Angeles": (34.052, -118.244),
    "Chicago": (41.878, -87.630),
    "New York": (40.713, -74.006),
    "Boston": (42.360, -71.059),
    "Washington": (38.907, -77.037),
    "Mexico City": (19.433, -99.133),
    "São Paulo": (-23.551, -46.633),
    "Buenos Aires": (-34.604, -58.382),
}

TRAIN_KM = 600.0
NEIGHBOURS = {
    city: [
        other for other in CITIES if other != city and great_circle_km(*CITIES[city], *CITIES[other]) < TRAIN_KM
    ]
    for city in CITIES
}
